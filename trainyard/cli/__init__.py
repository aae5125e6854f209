"""The command line. `main` loads the rest, so that naming this package costs nothing."""

import sys


def main() -> None:
    """Entry point of `trainyard`."""
    try:
        from trainyard.cli.app import app
    except KeyboardInterrupt:  # An interrupt during the imports, before any handler exists, must not print a traceback.
        sys.exit(130)
    app()
