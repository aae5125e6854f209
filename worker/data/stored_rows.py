"""Rows of tokens in memory-mapped files: a rank holds only the layout of the rows in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.data.build_tokens import TARGETS, TOKENS
from worker.data.examples import TokenCounts
from worker.data.row_layout import RowLayout
from worker.data.token_cache import CacheEntry, TokenCache
from worker.data.token_rows import RowExamples, Segment

_DTYPES = {"starts": "<i8", "sizes": "<i4", "ends": "<i8", "lengths": "<i4", "weights": "<i4", "squares": "<f8"}
"""The files of the entry of a layout, each an array of `RowLayout`."""


def write_layout(folder: Path, layout: RowLayout) -> None:
    """Write the arrays of a layout into the folder of a new entry."""
    for name, dtype in _DTYPES.items():
        array: NDArray[Any] = getattr(layout, name)
        array.astype(dtype).tofile(folder / name)


@dataclass(frozen=True)
class StoredPart:
    """The rows of a source."""

    tokens: CacheEntry
    layout: CacheEntry

    @cached_property
    def arrays(self) -> RowLayout:
        """The layout, memory-mapped."""
        return RowLayout(**{name: self.layout.array(name, dtype) for name, dtype in _DTYPES.items()})

    @cached_property
    def flat(self) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """The tokens, and whether each is learned; memory-mapped, both of shape (tokens,)."""
        return self.tokens.array(TOKENS, "<i4"), self.tokens.array(TARGETS, "<u1")

    @property
    def digest(self) -> str:
        """A text that differs for other rows."""
        digests = {**self.tokens.digests, **{f"layout {name}": value for name, value in self.layout.digests.items()}}
        return " ".join(f"{name} {digest}" for name, digest in sorted(digests.items()))

    def segments(self, index: int) -> list[Segment]:
        """Return the segments of a row."""
        layout, (tokens, targets) = self.arrays, self.flat
        first, stop = int(layout.ends[index - 1]) if index else 0, int(layout.ends[index])
        spans = [(int(layout.starts[segment]), int(layout.sizes[segment])) for segment in range(first, stop)]
        return [Segment(tokens[at : at + size], targets[at : at + size].view(np.bool_)) for at, size in spans]


class StoredRows:
    """The rows of several sources, concatenated."""

    def __init__(self, parts: Sequence[StoredPart], cache: TokenCache) -> None:
        self._parts = list(parts)
        self.cache = cache
        """The cache of the files. A temporary cache lasts as long as a reference to it."""
        self._ends = np.cumsum([len(part.arrays.ends) for part in parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def segments(self, index: int) -> list[Segment]:
        """Return the segments of a row."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self._parts[part].segments(index - (int(self._ends[part - 1]) if part else 0))

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """The number of tokens in each row, shape (rows,)."""
        return self._joined("lengths")

    @cached_property
    def weights(self) -> NDArray[np.int32]:
        """The number of targets in each row, shape (rows,)."""
        return self._joined("weights")

    @cached_property
    def token_counts(self) -> TokenCounts:
        """The tokens that the model computes for each row."""
        return TokenCounts(self.lengths.astype(np.int64) - 1, self._joined("squares"), self.weights)

    @cached_property
    def max_segments(self) -> int:
        """The number of segments in the row with the most of them."""
        return max((int(np.diff(part.arrays.ends, prepend=0).max(initial=1)) for part in self._parts), default=1)

    def _joined(self, name: str) -> NDArray[Any]:
        arrays = [getattr(part.arrays, name) for part in self._parts]
        joined: NDArray[Any] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return joined


@dataclass(frozen=True)
class StoredExamples(RowExamples):
    """Rows of tokens in memory-mapped files."""

    digest: str = field(default="", kw_only=True)
    """The digest of the training examples, from the digests of their files."""
