"""The format of our own lines in the logs of launchers and ranks. Each time has its zone: readers may be elsewhere."""

import logging
from pathlib import Path

LINE = "%(asctime)s %(levelname)s %(message)s"
TIME = "%Y-%m-%d %H:%M:%S%z"


def file_handler(path: Path) -> logging.FileHandler:
    """Return a handler that appends to a file in this format."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter(LINE, TIME))
    return handler
