"""The format of our own lines in the logs of launchers and ranks, and the warnings of libraries that are left out."""

import logging
import re
from pathlib import Path

LINE = "%(asctime)s %(levelname)s %(message)s"
TIME = "%Y-%m-%d %H:%M:%S%z"
"""With the zone: readers may be in another."""
_MISSING_GPU_KERNELS = {
    "torchao": re.compile(r"Failed to load \S*/torchao/_C_\w+\S*\.so: "),
    "torchao.kernel.intmm": re.compile(r"Warning: Detected no triton\b"),
}
"""Messages of torchao at its import (by peft), by the logger's name."""


def file_handler(path: Path) -> logging.FileHandler:
    """Return a handler that appends to a file in this format."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter(LINE, TIME))
    return handler


def ignore_missing_gpu_kernels() -> None:
    """Log no warnings about kernels that only GPUs can run. To be called once, where there is no GPU."""
    for name in _MISSING_GPU_KERNELS:
        logging.getLogger(name).addFilter(_is_logged)


def _is_logged(record: logging.LogRecord) -> bool:
    return _MISSING_GPU_KERNELS[record.name].match(record.getMessage()) is None
