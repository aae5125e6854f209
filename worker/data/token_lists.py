"""Texts of different lengths as tokens, and the padded rows made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenLists:
    """The tokens of texts, concatenated."""

    tokens: NDArray[np.int32]
    """Shape (tokens of all texts,)."""
    ends: NDArray[np.int64]
    """The end of each text in them, shape (texts,)."""
    padding: int
    """The token after the end of shorter texts."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[int] | NDArray[np.int32]], padding: int) -> "TokenLists":
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        none = np.zeros(0, dtype=np.int32)
        return cls(np.concatenate([none, *(np.asarray(row, dtype=np.int32) for row in rows)]), ends, padding)

    @classmethod
    def joined(cls, parts: "Sequence[TokenLists]") -> "TokenLists":
        """Return the texts of all parts, in their order."""
        starts = np.cumsum([0, *(len(part.tokens) for part in parts[:-1])])
        ends = [part.ends + start for part, start in zip(parts, starts, strict=True)]
        return cls(np.concatenate([part.tokens for part in parts]), np.concatenate(ends), parts[0].padding)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each text, shape (texts,)."""
        return np.diff(self.ends, prepend=0)

    def text(self, number: int) -> NDArray[np.int32]:
        """Return the tokens of a text, shape (tokens,)."""
        end = int(self.ends[number])
        return self.tokens[end - int(self.lengths[number]) : end]

    def padded(self, texts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return tokens and the mask of attention of texts by their numbers: each of shape (n, longest)."""
        lengths = self.lengths[texts]
        tokens = np.full((len(texts), int(lengths.max())), self.padding, dtype=np.int64)
        mask = np.zeros_like(tokens)
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            tokens[row, :length] = self.text(int(text))
            mask[row, :length] = 1
        return tokens, mask
