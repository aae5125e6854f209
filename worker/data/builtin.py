"""Builtin data sets: handwritten digits, a generated regression, and the source of Python's standard library."""

import gzip
import importlib.util
import os
import sysconfig
from pathlib import Path

import numpy as np
import torch

from trainyard.contract.model_input import DIGITS
from worker.core.errors import RefusedError

_SPLIT_SEED = 20
MAX_STDLIB_BYTES = 20 * 2**20
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


def load_digits(eval_fraction: float) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return scikit-learn's handwritten digits in a fixed order.

    Returns:
        Images (fp32 in 0..1, shape (n, 1, 8, 8)), labels (int64, shape (n,)), and how many from the front are for
        training.

    Raises:
        RefusedError: scikit-learn is not installed.
    """
    table = _table()
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(table))
    table = table[order]
    images = torch.from_numpy(table[:, :-1].astype(np.float32) / np.float32(DIGITS.high)).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    return images, labels, len(table) - round(len(table) * eval_fraction)


def _table() -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    # Importing scikit-learn takes longer than training a digits model to 90 %, so only its data file is read.
    spec = importlib.util.find_spec("sklearn")
    if spec is None:
        raise RefusedError(
            "data.name: `digits` needs scikit-learn, which is not installed where this job runs",
            "Install scikit-learn, or the extra `examples`, into the worker's environment.",
        )
    if spec.origin is not None:
        path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            with gzip.open(path, "rt") as file:
                return np.loadtxt(file, delimiter=",", ndmin=2)
    from sklearn.datasets import load_digits as load

    images, labels = load(return_X_y=True)
    return np.column_stack([images, labels])


def make_parity(examples: int, inputs: int, outputs: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a regression data set that depends on the seed alone: y = tanh(x M) + 0.1 noise.

    Returns:
        Inputs (fp32, shape (examples, inputs)) and targets (fp32, shape (examples, outputs)).
    """
    generator = np.random.RandomState([seed % 2**32, seed // 2**32 % 2**32, 7])
    x = generator.standard_normal((examples, inputs))
    mixing = generator.standard_normal((inputs, outputs))
    y = np.tanh(x @ mixing) + 0.1 * generator.standard_normal((examples, outputs))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32))


def load_stdlib(limit: int = MAX_STDLIB_BYTES) -> torch.Tensor:
    """Return the source of Python's standard library, in the order of paths: uint8, shape (limit,) or shorter."""
    parts = bytearray()
    for path in _sources(Path(sysconfig.get_path("stdlib"))):
        parts += path.read_bytes()
        if len(parts) >= limit:
            break
    return torch.frombuffer(parts[:limit], dtype=torch.uint8)


def windows(stream: torch.Tensor, length: int) -> torch.Tensor:
    """Cut a stream of shape (n,) into rows without overlap, shape (n // length, length); the rest is dropped."""
    rows = len(stream) // length
    return stream[: rows * length].view(rows, length)


def _sources(root: Path) -> list[Path]:
    paths: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        paths.extend(Path(folder, name) for name in names if name.endswith(".py"))
    return sorted(paths, key=lambda path: path.relative_to(root).as_posix())
