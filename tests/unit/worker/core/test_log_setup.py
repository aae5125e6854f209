"""Warnings of libraries about kernels that only GPUs have."""

import logging

import pytest

from worker.core.log_setup import ignore_missing_gpu_kernels

LIBRARY = "/site-packages/torchao/_C_cutlass_90a.abi3.so"


@pytest.fixture
def unfiltered():
    names = ("torchao", "torchao.kernel.intmm")
    loggers = [logging.getLogger(name) for name in names]
    before = [list(logger.filters) for logger in loggers]
    yield loggers
    for logger, filters in zip(loggers, before, strict=True):
        logger.filters[:] = filters


@pytest.mark.parametrize(
    ("logger", "message", "printed"),
    [
        ("torchao", f"Failed to load {LIBRARY}: Could not load this library: {LIBRARY}", False),
        ("torchao.kernel.intmm", "Warning: Detected no triton, on systems without Triton some kernels fail", False),
        ("torchao", "Skipping import of cpp extensions due to incompatible torch version.", True),
        ("torchao", "Failed to load /data/weights.so: not loggers", True),
        ("torchao.kernel.intmm", "Detected no int8 support", True),
        ("torchao.quantization", f"Failed to load {LIBRARY}", True),
    ],
)
def test_only_missing_kernels_for_gpus_are_not_logged(unfiltered, caplog, logger, message, printed):
    ignore_missing_gpu_kernels()
    logging.getLogger(logger).warning(message)
    assert (message in caplog.text) is printed
