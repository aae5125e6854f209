"""The command line. `main` loads the rest, so that naming this package costs nothing."""

import sys
from types import ModuleType


def main() -> None:
    """Entry point of `trainyard`."""
    # httpx imports Rich, Pygments and Click for a command line of its own, unless this module lacks it.
    sys.modules.setdefault("httpx._main", ModuleType("httpx._main"))
    try:
        from trainyard.cli.app import app
    except KeyboardInterrupt:  # An interrupt during the imports, before any handler exists, must not print a traceback.
        sys.exit(130)
    app()
