"""Tests that need a GPU. They are the only tests that are skipped on a machine without one."""

import pytest


def pytest_collection_modifyitems(items):
    import torch

    here = [item for item in items if "tests/gpu/" in str(item.path)]
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="this machine has no CUDA device"))
