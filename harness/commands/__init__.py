"""The commands of `lab`, one family a file. `harness/cli.py` joins them."""
