"""Texts of different lengths as tokens, and the padded rows made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenLists:
    """The tokens of texts, one text after the other."""

    tokens: NDArray[np.int32]
    """Shape (tokens of all texts,)."""
    ends: NDArray[np.int64]
    """The end of each text in them, shape (texts,)."""
    padding: int
    """The token after the end of shorter texts."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], padding: int) -> "TokenLists":
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        return cls(np.concatenate([np.asarray(row, dtype=np.int32) for row in rows]), ends, padding)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each text, shape (texts,)."""
        return np.diff(self.ends, prepend=0)

    def padded(self, texts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return tokens and the mask of attention of texts by their numbers: each of shape (n, longest)."""
        lengths = self.lengths[texts]
        tokens = np.full((len(texts), int(lengths.max())), self.padding, dtype=np.int64)
        mask = np.zeros_like(tokens)
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            tokens[row, :length] = self.tokens[self.ends[text] - length : self.ends[text]]
            mask[row, :length] = 1
        return tokens, mask
