"""What `harness.client` stands on: fork server, wardens, the client process itself, values between them."""
