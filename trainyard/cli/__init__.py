"""The command line. `main` loads the rest, so that naming this package costs nothing."""

import sys

from trainyard.process_start import speed_up_imports


def main() -> None:
    """Entry point of `trainyard`."""
    speed_up_imports()
    try:
        from trainyard.cli.app import app
    except KeyboardInterrupt:  # An interrupt during the imports, before any handler exists, must not print a traceback.
        sys.exit(130)
    app()
