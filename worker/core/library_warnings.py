"""Warnings of libraries that mean nothing on machines without a GPU."""

import logging
import re

_MISSING_GPU_KERNELS = {
    "torchao": re.compile(r"Failed to load \S*/torchao/_C_\w+\S*\.so: "),
    "torchao.kernel.intmm": re.compile(r"Warning: Detected no triton\b"),
}
"""Messages of torchao at its import (by peft), by the logger's name."""


def ignore_missing_gpu_kernels() -> None:
    """Log no warnings about kernels that only GPUs can run. To be called once, where there is no GPU."""
    for name in _MISSING_GPU_KERNELS:
        logging.getLogger(name).addFilter(_is_logged)


def _is_logged(record: logging.LogRecord) -> bool:
    return _MISSING_GPU_KERNELS[record.name].match(record.getMessage()) is None
