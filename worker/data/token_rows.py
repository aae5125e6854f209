"""Rows of tokens, in memory or elsewhere, and batches of rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from worker.data.examples import IGNORED_LABEL, Examples, Tensors, TokenCounts
from worker.data.sampler import Indices


@dataclass(frozen=True)
class Segment:
    """The tokens of an example, or of a part of it, and which of them are targets; both of shape (length,)."""

    tokens: NDArray[np.int32]
    targets: NDArray[np.bool_]


@dataclass(frozen=True)
class TokenRows:
    """Rows of segments, concatenated in flat arrays: nine bytes a token."""

    tokens: NDArray[np.int32]
    """Shape (tokens,)."""
    targets: NDArray[np.bool_]
    """Shape (tokens,): whether the token is predicted from the tokens before it."""
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

    def __len__(self) -> int:
        return len(self.ends)

    def segments(self, index: int) -> list[Segment]:
        """Return the segments of a row."""
        end = int(self.ends[index])
        start = end - int(self.lengths[index])
        inner = np.flatnonzero(self.positions[start:end] == 0)
        bounds = zip(inner + start, [*(inner[1:] + start), end], strict=True)
        return [Segment(self.tokens[first:last], self.targets[first:last]) for first, last in bounds]

    @cached_property
    def token_counts(self) -> TokenCounts:
        """The tokens that the model computes for each row. The tokens of a segment attend only to each other."""
        starts, rows = self._segments
        lengths = np.diff(starts, append=len(self.tokens))
        # The last token of a row is only a target.
        lengths[np.append(np.flatnonzero(np.diff(rows)), len(rows) - 1)] -= 1
        squares = np.bincount(rows, weights=lengths.astype(np.float64) ** 2, minlength=len(self.ends))
        return TokenCounts(self.lengths - 1, squares.astype(np.float64), self.weights)

    @cached_property
    def max_segments(self) -> int:
        """The number of segments in the row with the most of them."""
        return int(np.bincount(self._segments[1]).max(initial=1))

    @cached_property
    def _segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first token of each segment, and its row; both of shape (segments,)."""
        starts = np.flatnonzero(self.positions == 0)
        return starts, np.searchsorted(self.ends, starts, side="right")


class Rows(Protocol):
    """Rows of segments, wherever they are."""

    @property
    def lengths(self) -> NDArray[Any]:
        """The number of tokens in each row: integers, shape (rows,)."""
        ...

    @property
    def weights(self) -> NDArray[Any]:
        """The number of targets in each row: integers, shape (rows,)."""
        ...

    @property
    def token_counts(self) -> TokenCounts:
        """The tokens that the model computes for each row."""
        ...

    @property
    def max_segments(self) -> int:
        """The number of segments in the row with the most of them."""
        ...

    def __len__(self) -> int: ...

    def segments(self, index: int) -> list[Segment]:
        """Return the segments of a row."""
        ...


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

    rows: Rows
    multiple: int = 1
    """Inputs are padded to a multiple of so many tokens, as far as `context` allows."""
    context: int | None = None
    """The model's maximum number of tokens; None if it has no limit."""
    counts_targets: bool = False
    """Whether training batches end with a tensor of shape (targets, 0): the host knows shapes without a wait."""

    @cached_property
    def token_counts(self) -> TokenCounts:
        """The tokens that the model computes for each row."""
        return self.rows.token_counts

    def largest(self, count: int) -> Indices:
        """Return the `count` longest rows for training: int64, shape (count,)."""
        return np.argsort(-self.rows.lengths[: self.train], kind="stable")[:count].astype(np.int64)

    def digest_arrays(self) -> list[NDArray[Any]]:
        """Return the arrays that identify the training examples."""
        assert isinstance(self.rows, TokenRows), "stored rows have a digest of their own"
        ends = self.rows.ends[: self.train]
        return [ends, *(flat[: ends[-1]] for flat in (self.rows.tokens, self.rows.targets, self.rows.positions))]

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Return inputs and labels: int64, each of shape (len(indices), length of the longest input).

        Where the lengths of rows differ, kernels and `torch.compile` see few shapes with a large `multiple`.

        Padding has token 0 and label `IGNORED_LABEL`. With `packed`, positions of the same shape and dtype follow, and
        the end of each segment: int32, (len(indices), segments of a row at most + 1). Padding is a segment too, and a
        row with fewer segments repeats its last end, so that all batches have as many. With `counts_targets` an empty
        tensor is the last.
        """
        arrays = self._arrays([self.rows.segments(int(index)) for index in indices])
        if self.counts_targets:
            arrays = *arrays, np.empty((int((arrays[1] != IGNORED_LABEL).sum()), 0), dtype=np.int64)
        return _on_device(arrays, device)

    def batch_of(self, rows: Sequence[list[Segment]], device: torch.device) -> Tensors:
        """Return the batch of these rows, which may be others than the examples' own; as `train_batch`, without the
        number of targets."""
        return _on_device(self._arrays(rows), device)

    def _arrays(self, rows: Sequence[list[Segment]]) -> tuple[NDArray[Any], ...]:
        lengths = [sum(len(segment.tokens) for segment in row) - 1 for row in rows]
        longest = self._padded_length(max(lengths))
        inputs = np.zeros((len(rows), longest), dtype=np.int64)
        labels = np.full((len(rows), longest), IGNORED_LABEL, dtype=np.int64)
        positions = np.zeros((len(rows), longest), dtype=np.int64)
        for row, (segments, length) in enumerate(zip(rows, lengths, strict=True)):
            tokens = np.concatenate([segment.tokens for segment in segments])
            targets = np.concatenate([segment.targets for segment in segments]).astype(np.bool_)
            # The first token of a segment is no target, since no token precedes it.
            targets[np.cumsum([0, *(len(segment.tokens) for segment in segments[:-1])])] = False
            inputs[row, :length] = tokens[:-1]
            labels[row, :length] = np.where(targets[1:], tokens[1:], IGNORED_LABEL)
            positions[row, :length] = np.concatenate([np.arange(len(segment.tokens)) for segment in segments])[:-1]
        if not self.packed:
            return inputs, labels
        return inputs, labels, positions, self._segment_ends(rows, lengths, longest)

    def _padded_length(self, length: int) -> int:
        padded = -(-length // self.multiple) * self.multiple
        return max(length, min(padded, self.context or padded))

    def _segment_ends(self, rows: Sequence[list[Segment]], lengths: list[int], longest: int) -> NDArray[np.int32]:
        result = np.full((len(rows), self.rows.max_segments + 1), longest, dtype=np.int32)
        for row, (segments, length) in enumerate(zip(rows, lengths, strict=True)):
            inner = np.cumsum([len(segment.tokens) for segment in segments[:-1]])
            result[row, : len(inner) + 1] = [*inner, length]
        return result


def _on_device(arrays: Iterable[NDArray[Any]], device: torch.device) -> Tensors:
    return tuple(torch.from_numpy(array).to(device, non_blocking=True) for array in arrays)
