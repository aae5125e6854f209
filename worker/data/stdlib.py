"""The source of Python's own standard library as one stream of bytes: real text on every machine."""

import os
import sysconfig
from pathlib import Path

import torch

MAX_BYTES = 20 * 2**20
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


def load_stdlib(limit: int = MAX_BYTES) -> torch.Tensor:
    """The first `limit` bytes of all modules in order of their paths, as uint8."""
    parts = bytearray()
    for path in _sources(Path(sysconfig.get_path("stdlib"))):
        parts += path.read_bytes()
        if len(parts) >= limit:
            break
    return torch.frombuffer(parts[:limit], dtype=torch.uint8)


def windows(stream: torch.Tensor, length: int) -> torch.Tensor:
    """The stream cut into rows of `length` that do not overlap; a rest is left out."""
    rows = len(stream) // length
    return stream[: rows * length].view(rows, length)


def _sources(root: Path) -> list[Path]:
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]
        found.extend(Path(folder, name) for name in names if name.endswith(".py"))
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())
