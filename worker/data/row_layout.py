"""Divides tokens into rows: long examples are cut, short examples packed. Pure functions of lengths and targets."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.data.cut_examples import CutExamples

OPEN_ROWS = 64
"""Rows that packing tries for a segment. First fit over all rows would take time quadratic in the data."""
LAYOUT_VERSION = 2
"""Changes when the same tokens make other rows, or other facts are stated about them."""
_SPLIT_SEED = 20
_TOKENS_AT_ONCE = 2**24

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class RowLayout:
    """Rows of segments of a flat array of tokens."""

    starts: Integers
    """The first token of each segment, shape (segments,)."""
    sizes: NDArray[np.int32]
    """The tokens of each segment, shape (segments,)."""
    ends: Integers
    """The index after each row's last segment, shape (rows,)."""
    lengths: NDArray[np.int32]
    """The tokens of each row, shape (rows,)."""
    weights: NDArray[np.int32]
    """The targets of each row, shape (rows,)."""
    squares: NDArray[np.float64]
    """The sum of the squared lengths of each row's segments, without the row's last token, which is no input."""


def held_out_examples(examples: int, fraction: float) -> NDArray[np.bool_]:
    """Return which examples are held out, shape (examples,): the rounded fraction of them, by their number alone."""
    chosen = np.zeros(examples, dtype=np.bool_)
    order = np.random.RandomState(_SPLIT_SEED).permutation(examples)
    chosen[order[: round(examples * fraction)]] = True
    return chosen


def lay_out(
    ends: Integers, targets: NDArray[np.uint8], length: int, *, split: bool, packed: bool, chosen: NDArray[np.bool_]
) -> RowLayout:
    """Return the rows of the chosen examples; segments without a target are left out.

    Args:
        ends: The index after each example's last token, shape (examples,).
        targets: Whether each token is learned, shape (tokens,).
        length: Tokens of a row at most.
        split: Long examples continue in further segments, each of which starts with the last token of the previous
            segment, so that every token is a target once. Otherwise the rest is dropped, since an answer's rest would
            lack the question.
        packed: Segments share rows; see `pack_sizes`.
        chosen: Shape (examples,).
    """
    parts = [_segments(ends, targets, length, split, chosen, *span) for span in _spans(ends)]
    starts, sizes, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    if packed:
        order = np.empty(len(sizes), dtype=np.int64)
        row_ends: list[int] = []
        filled = 0
        for row in pack_sizes(sizes.tolist(), length):
            order[filled : filled + len(row)] = row
            filled += len(row)
            row_ends.append(filled)
        starts, sizes, weights = starts[order], sizes[order], weights[order]
        segment_ends = np.array(row_ends, dtype=np.int64)
    else:
        segment_ends = np.arange(1, len(sizes) + 1, dtype=np.int64)
    firsts = np.concatenate([[0], segment_ends]).astype(np.int64)[: len(segment_ends)]
    inputs = sizes.astype(np.float64)
    if len(segment_ends):
        inputs[segment_ends - 1] -= 1
    return RowLayout(
        starts,
        sizes.astype(np.int32),
        segment_ends,
        _sums(sizes, firsts).astype(np.int32),
        _sums(weights, firsts).astype(np.int32),
        _sums(inputs**2, firsts).astype(np.float64),
    )


def cut_examples(ends: Integers, chosen: NDArray[np.bool_], starts: Integers, length: int | None) -> CutExamples:
    """Count the chosen examples that were cut or left out.

    Args:
        ends: The index after each example's last token, shape (examples,).
        chosen: Shape (examples,).
        starts: The first token of each segment that was made of them, shape (segments,).
        length: Tokens after which an example is cut. None: it continues in another segment.
    """
    sizes = np.diff(ends, prepend=0)
    begins, sizes = (ends - sizes)[chosen], sizes[chosen]
    longer = np.zeros(len(sizes), dtype=np.bool_) if length is None else sizes > length
    used = (sizes > 0) & np.isin(begins, starts)
    return CutExamples(
        examples=len(sizes),
        truncated=int((longer & used).sum()),
        too_long=int((longer & ~used).sum()),
        empty=int((~longer & ~used).sum()),
        longest=int(sizes.max(initial=0)),
    )


def pack_sizes(sizes: Iterable[int], length: int) -> Iterator[list[int]]:
    """Yield rows of segments, by their numbers, with at most `length` tokens: each segment goes to the first open row
    with room. Depends only on the sizes and their order, so that the examples of a data set are fixed."""
    rows: list[list[int]] = []
    free: list[int] = []
    for number, size in enumerate(sizes):
        index = next((index for index, left in enumerate(free) if left >= size), None)
        if index is None:
            if len(rows) == OPEN_ROWS:
                free.pop(0)
                yield rows.pop(0)
            rows.append([])
            free.append(length)
            index = len(rows) - 1
        rows[index].append(number)
        free[index] -= size
    yield from rows


def _spans(ends: Integers) -> Iterator[tuple[int, int]]:
    """Yield ranges of examples with about as many tokens as are examined at once."""
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + _TOKENS_AT_ONCE, side="right"))
        stop = max(stop, start + 1)
        yield start, stop
        start = stop
    if not len(ends):
        yield 0, 0


def _segments(
    ends: Integers,
    targets: NDArray[np.uint8],
    length: int,
    split: bool,
    chosen: NDArray[np.bool_],
    first: int,
    stop: int,
) -> tuple[Integers, Integers, Integers]:
    """Return start, size and number of targets of the segments of the examples from `first` up to `stop`."""
    if stop == first:
        none = np.zeros(0, dtype=np.int64)
        return none, none, none
    begin = int(ends[first - 1]) if first else 0
    stops = np.asarray(ends[first:stop], dtype=np.int64)
    starts = np.concatenate([[begin], stops[:-1]])
    sums = np.concatenate([[0], np.cumsum(targets[begin : stops[-1]], dtype=np.int64)])
    selected = chosen[first:stop]
    starts, sizes = starts[selected], (stops - starts)[selected]
    step = length - 1
    counts = -(-np.maximum(1, sizes - 1) // step) if split else np.ones(len(sizes), dtype=np.int64)
    numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    segment_starts = np.repeat(starts, counts) + numbers * step
    segment_sizes = np.minimum(length, np.repeat(sizes, counts) - numbers * step)
    local = segment_starts - begin
    # The first token of a segment is no target, since no token precedes it.
    weights = sums[local + segment_sizes] - sums[np.minimum(local + 1, local + segment_sizes)]
    useful = weights > 0
    return segment_starts[useful], segment_sizes[useful], weights[useful]


def _sums(values: NDArray[np.generic], firsts: Integers) -> NDArray[np.generic]:
    return np.add.reduceat(values, firsts) if len(firsts) else values[:0]
