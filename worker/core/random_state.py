"""Seeds and states of the random number generators of Python, numpy and torch."""

import random
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int, rank: int | None = None) -> None:
    """Seed all generators of this process. With `rank`, each rank gets an independent stream of the same seed."""
    stream = np.random.SeedSequence([seed, 0 if rank is None else rank + 1]).generate_state(3, np.uint64)
    torch.manual_seed(int(stream[0]) % 2**63)
    np.random.seed(int(stream[1]) % 2**32)
    random.seed(int(stream[2]))


def capture_random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of all generators as tensors, including a CUDA device's generator."""
    _, mersenne_twister, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "python": torch.tensor(mersenne_twister, dtype=torch.int64),
        "python_gauss": torch.tensor(float("nan") if gauss is None else gauss, dtype=torch.float64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_gauss": torch.tensor([position, has_gauss, cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the state of all generators from `capture_random_state`."""
    gauss = float(state["python_gauss"])
    random.setstate((3, tuple(state["python"].tolist()), None if gauss != gauss else gauss))
    position, has_gauss, cached = state["numpy_gauss"].tolist()
    keys = state["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(position), int(has_gauss), cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
