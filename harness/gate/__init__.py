"""The wire behind `harness.proxy`: bytes, sockets, one session's gate, lanes and stops."""
