"""Rows of tokens in memory: what an example of a language model is, and the batches made of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from worker.data.examples import IGNORED_LABEL, Examples, Tensors
from worker.data.sampler import Indices

OPEN_ROWS = 64
"""Rows that are tried for a piece: first fit over all of them would take time that grows as the square of the data."""


@dataclass(frozen=True)
class Piece:
    """Tokens that belong together, and which of them are to be predicted."""

    tokens: NDArray[np.int32]
    targets: NDArray[np.bool_]


@dataclass(frozen=True)
class TokenRows:
    """Rows one after the other in flat arrays: nine bytes a token."""

    tokens: NDArray[np.int32]
    targets: NDArray[np.bool_]
    positions: NDArray[np.int32]
    """Each token's place in its own piece, from 0."""
    ends: NDArray[np.int64]
    """Where each row ends."""

    @property
    def weights(self) -> NDArray[np.int64]:
        """Targets in each row."""
        sums = np.concatenate([[0], np.cumsum(self.targets, dtype=np.int64)])
        return np.diff(sums[self.ends], prepend=0)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.ends, prepend=0)


def build_token_rows(rows: Iterable[list[Piece]]) -> TokenRows:
    """The rows' pieces end to end. A piece's first token is no target: nothing stands before it."""
    tokens, targets, positions, ends = [], [], [], []
    length = 0
    for row in rows:
        for piece in row:
            tokens.append(piece.tokens)
            targets.append(np.concatenate([[False], piece.targets[1:]]))
            positions.append(np.arange(len(piece.tokens), dtype=np.int32))
            length += len(piece.tokens)
        ends.append(length)
    return TokenRows(
        np.concatenate(tokens, dtype=np.int32),
        np.concatenate(targets, dtype=np.bool_),
        np.concatenate(positions, dtype=np.int32),
        np.array(ends, dtype=np.int64),
    )


def concatenate_rows(first: TokenRows, second: TokenRows) -> TokenRows:
    """The rows of both, in order."""
    return TokenRows(
        np.concatenate([first.tokens, second.tokens]),
        np.concatenate([first.targets, second.targets]),
        np.concatenate([first.positions, second.positions]),
        np.concatenate([first.ends, second.ends + len(first.tokens)]),
    )


@dataclass(frozen=True)
class RowExamples(Examples):
    """Batches as long as their longest row: inputs, labels, and with `packed` the positions, each (rows, length)."""

    rows: TokenRows
    packed: bool

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        starts = np.concatenate([[0], self.rows.ends])[indices]
        ends = self.rows.ends[indices]
        longest = int((ends - starts).max()) - 1
        inputs = np.zeros((len(indices), longest), dtype=np.int64)
        labels = np.full((len(indices), longest), IGNORED_LABEL, dtype=np.int64)
        positions = np.zeros((len(indices), longest), dtype=np.int64)
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            length = end - start - 1
            tokens, targets = self.rows.tokens[start:end], self.rows.targets[start + 1 : end]
            inputs[row, :length] = tokens[:-1]
            labels[row, :length] = np.where(targets, tokens[1:], IGNORED_LABEL)
            positions[row, :length] = self.rows.positions[start : end - 1]
        arrays = (inputs, labels, positions) if self.packed else (inputs, labels)
        return tuple(torch.from_numpy(array).to(device, non_blocking=True) for array in arrays)


def pack(pieces: Iterable[Piece], length: int) -> Iterator[list[Piece]]:
    """Rows of whole pieces, `length` tokens at most: each piece goes to the first of the open rows with room for it."""
    rows: list[list[Piece]] = []
    room: list[int] = []
    for piece in pieces:
        size = len(piece.tokens)
        place = next((place for place, left in enumerate(room) if left >= size), None)
        if place is None:
            if len(rows) == OPEN_ROWS:
                room.pop(0)
                yield rows.pop(0)
            rows.append([])
            room.append(length)
            place = len(rows) - 1
        rows[place].append(piece)
        room[place] -= size
    yield from rows
