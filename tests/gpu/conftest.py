"""Tests of what only a GPU can do. Where there is none they are skipped: this is the one place where that is right."""

import pytest


def pytest_collection_modifyitems(items):
    import torch

    here = [item for item in items if "tests/gpu/" in str(item.path)]
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="this machine has no CUDA device"))
