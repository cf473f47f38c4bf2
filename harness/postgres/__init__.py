"""PostgreSQL from three sources, and the embedded server: what `harness.database` stands on."""
