"""The command line. `main` loads the rest, so that naming this package costs nothing."""

import sys


def main() -> None:
    """Entry point of `trainyard`."""
    try:
        from trainyard.cli.app import app
    except KeyboardInterrupt:  # the half second in which nothing of ours could say so
        sys.exit(130)
    app()
