"""Rows of tokens in memory, packing of segments into rows, and batches of rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from worker.data.examples import IGNORED_LABEL, Examples, Tensors, TokenCounts
from worker.data.sampler import Indices

OPEN_ROWS = 64
"""Rows that packing tries for a segment. First fit over all rows would take time quadratic in the data."""


@dataclass(frozen=True)
class Segment:
    """The tokens of one example, or of a part of it, and which of them are targets; both of shape (length,)."""

    tokens: NDArray[np.int32]
    targets: NDArray[np.bool_]


@dataclass(frozen=True)
class TokenRows:
    """Rows of segments, concatenated in flat arrays: nine bytes a token."""

    tokens: NDArray[np.int32]
    """Shape (tokens,)."""
    targets: NDArray[np.bool_]
    """Shape (tokens,): whether the token is predicted from those before it."""
    positions: NDArray[np.int32]
    """Shape (tokens,): the index of each token in its own segment."""
    ends: NDArray[np.int64]
    """Shape (rows,): the index after each row's last token."""

    @property
    def weights(self) -> NDArray[np.int64]:
        """The number of targets in each row, shape (rows,)."""
        sums = np.concatenate([[0], np.cumsum(self.targets, dtype=np.int64)])
        return np.diff(sums[self.ends], prepend=0)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens in each row, shape (rows,)."""
        return np.diff(self.ends, prepend=0)


def build_token_rows(rows: Iterable[list[Segment]]) -> TokenRows:
    """Concatenate the rows' segments. The first token of a segment is no target, since no token precedes it."""
    tokens, targets, positions, ends = [], [], [], []
    length = 0
    for row in rows:
        for segment in row:
            tokens.append(segment.tokens)
            targets.append(np.concatenate([[False], segment.targets[1:]]))
            positions.append(np.arange(len(segment.tokens), dtype=np.int32))
            length += len(segment.tokens)
        ends.append(length)
    return TokenRows(
        np.concatenate(tokens, dtype=np.int32),
        np.concatenate(targets, dtype=np.bool_),
        np.concatenate(positions, dtype=np.int32),
        np.array(ends, dtype=np.int64),
    )


def concatenate_rows(parts: Sequence[TokenRows]) -> TokenRows:
    """Return the rows of all parts, in their order."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.tokens) for part in parts[:-1])])
    return TokenRows(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.targets for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.ends + start for part, start in zip(parts, starts, strict=True)]),
    )


@dataclass(frozen=True)
class RowExamples(Examples):
    """Examples that are rows of tokens; a batch is padded to its longest row, or a little further."""

    rows: TokenRows
    packed: bool
    multiple: int = 1
    """Inputs are padded to a multiple of so many tokens, as far as `context` allows."""
    context: int | None = None
    """The model's maximum number of tokens; None if it has no limit."""

    @cached_property
    def token_counts(self) -> TokenCounts:
        """The tokens that the model computes for each row. Those of a segment attend to each other alone."""
        starts, rows = self._segments
        lengths = np.diff(starts, append=len(self.rows.tokens))
        # The last token of a row is only a target.
        lengths[np.append(np.flatnonzero(np.diff(rows)), len(rows) - 1)] -= 1
        squares = np.bincount(rows, weights=lengths.astype(np.float64) ** 2, minlength=len(self.rows.ends))
        return TokenCounts(self.rows.lengths - 1, squares.astype(np.float64))

    @cached_property
    def _segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first token of each segment, and its row; both of shape (segments,)."""
        starts = np.flatnonzero(self.rows.positions == 0)
        return starts, np.searchsorted(self.rows.ends, starts, side="right")

    @cached_property
    def _max_segments(self) -> int:
        """The number of segments in the row with the most of them."""
        return int(np.bincount(self._segments[1]).max(initial=1))

    def largest(self, count: int) -> Indices:
        """Return the `count` longest rows for training: int64, shape (count,)."""
        return np.argsort(-self.rows.lengths[: self.train], kind="stable")[:count].astype(np.int64)

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Return inputs and labels: int64, each of shape (len(indices), length of the longest input).

        Where the lengths of rows differ, kernels and `torch.compile` see few shapes with a large `multiple`.

        Padding has token 0 and label `IGNORED_LABEL`. With `packed`, positions of the same shape and dtype follow, and
        the end of each segment: int32, (len(indices), segments of a row at most + 1). Padding is a segment too, and a
        row with fewer segments repeats its last end, so that all batches have as many.
        """
        starts = np.concatenate([[0], self.rows.ends])[indices]
        ends = self.rows.ends[indices]
        longest = self._padded_length(int((ends - starts).max()) - 1)
        inputs = np.zeros((len(indices), longest), dtype=np.int64)
        labels = np.full((len(indices), longest), IGNORED_LABEL, dtype=np.int64)
        positions = np.zeros((len(indices), longest), dtype=np.int64)
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            length = end - start - 1
            tokens, targets = self.rows.tokens[start:end], self.rows.targets[start + 1 : end]
            inputs[row, :length] = tokens[:-1]
            labels[row, :length] = np.where(targets, tokens[1:], IGNORED_LABEL)
            positions[row, :length] = self.rows.positions[start : end - 1]
        arrays = (inputs, labels, positions, self._segment_ends(starts, ends, longest))
        return tuple(
            torch.from_numpy(array).to(device, non_blocking=True) for array in (arrays if self.packed else arrays[:2])
        )

    def _padded_length(self, length: int) -> int:
        padded = -(-length // self.multiple) * self.multiple
        return max(length, min(padded, self.context or padded))

    def _segment_ends(self, starts: NDArray[np.int64], ends: NDArray[np.int64], length: int) -> NDArray[np.int32]:
        result = np.full((len(starts), self._max_segments + 1), length, dtype=np.int32)
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            inner = np.flatnonzero(self.rows.positions[start + 1 : end - 1] == 0) + 1
            result[row, : len(inner) + 1] = [*inner, end - start - 1]
        return result


def pack(segments: Iterable[Segment], length: int) -> Iterator[list[Segment]]:
    """Yield rows of whole segments with at most `length` tokens: each segment goes to the first open row with room.

    Depends only on the lengths and the order of the segments, so that the examples of a data set are fixed.
    """
    rows: list[list[Segment]] = []
    free_tokens: list[int] = []
    for segment in segments:
        size = len(segment.tokens)
        index = next((index for index, left in enumerate(free_tokens) if left >= size), None)
        if index is None:
            if len(rows) == OPEN_ROWS:
                free_tokens.pop(0)
                yield rows.pop(0)
            rows.append([])
            free_tokens.append(length)
            index = len(rows) - 1
        rows[index].append(segment)
        free_tokens[index] -= size
    yield from rows
