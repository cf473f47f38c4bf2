"""Where the `lab` command begins: Ctrl-C has its meaning before the first import of the kit."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still being loaded ends quietly with 130, too."""
    try:
        from harness.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
