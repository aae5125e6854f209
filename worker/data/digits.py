"""scikit-learn's 8x8 handwritten digits, with a fixed split."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch

from worker.errors import RefusedError

_SPLIT_SEED = 20


def load_digits(eval_fraction: float) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Images (n, 1, 8, 8) in 0..1, labels, and how many of them, from the front, are for training.

    Raises:
        RefusedError: scikit-learn, whose file it is, is not installed.
    """
    table = _table()
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(table))
    table = table[order]
    images = torch.from_numpy(table[:, :-1].astype(np.float32) / 16.0).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    return images, labels, len(table) - round(len(table) * eval_fraction)


def _table() -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    # Importing scikit-learn takes longer than training a digits model to 90 %; its data file is all we want.
    spec = importlib.util.find_spec("sklearn")
    if spec is None:
        raise RefusedError(
            "data.name: `digits` comes with scikit-learn, which is not installed where this job runs",
            "install it into the worker's environment: the extra `examples`, or scikit-learn itself",
        )
    if spec.origin is not None:
        path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            with gzip.open(path, "rt") as file:
                return np.loadtxt(file, delimiter=",", ndmin=2)
    from sklearn.datasets import load_digits as load

    images, labels = load(return_X_y=True)
    return np.column_stack([images, labels])
