"""Preserves the state of the caller's random generators."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from worker.core.random_state import capture_random_state, restore_random_state


@contextmanager
def own_random_state() -> Iterator[None]:
    """Restore the state of all random generators at the end of the block, which may seed them."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before = capture_random_state(device)
    try:
        yield
    finally:
        restore_random_state(before, device)
