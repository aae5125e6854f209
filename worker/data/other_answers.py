"""Answers to other prompts, with which KTO compares the answers of a batch."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from worker.data.sampler import Indices
from worker.data.token_lists import TokenLists

Pairs = NDArray[np.int64]
"""Pairs of an example that gives the prompt and an example that gives the answer, each as one number: (pairs,)."""


@dataclass(frozen=True)
class PromptsAndAnswers:
    """The prompts and answers of examples, stored separately, so that an answer can follow another example's prompt."""

    prompts: TokenLists
    answers: TokenLists

    @classmethod
    def joined(cls, parts: "Sequence[PromptsAndAnswers]") -> "PromptsAndAnswers":
        """Return the examples of all parts, in their order."""
        return cls(*(TokenLists.joined([getattr(part, name) for part in parts]) for name in ("prompts", "answers")))

    def __len__(self) -> int:
        return len(self.prompts.ends)

    @cached_property
    def _prompt_numbers(self) -> NDArray[np.int64]:
        """Numbers that are equal where the prompts are, shape (examples,)."""
        numbers: dict[bytes, int] = {}
        texts = (self.prompts.text(example).tobytes() for example in range(len(self)))
        digests = (hashlib.blake2b(text, digest_size=16).digest() for text in texts)
        return np.array([numbers.setdefault(digest, len(numbers)) for digest in digests], dtype=np.int64)

    def pairs_in(self, batch: Indices) -> Pairs:
        """Pair the prompt of each example of a global batch with an answer to another prompt: shape (n,).

        The answer comes from the nearest earlier example in the batch with another prompt; the last example precedes
        the first (KTO, arXiv:2402.01306, section 4.1). If all prompts are equal, the previous example gives it.
        """
        count = len(batch)
        prompts = self._prompt_numbers[batch]
        differs = prompts != np.roll(prompts, 1)
        # Repeat the batch, so that the last examples precede the first.
        places = np.arange(2 * count)
        firsts = np.where(np.tile(differs, 2) | (not differs.any()), places, 0)
        others = batch[(np.maximum.accumulate(firsts)[count:] - 1) % count]
        pairs: Pairs = batch * len(self) + others
        return pairs

    def all_pairs_in(self, batches: Iterable[Indices]) -> Pairs:
        """Return the pairs of all these global batches, each once and in their order."""
        none = np.zeros(0, dtype=np.int64)
        return np.unique(np.concatenate([none, *(np.unique(self.pairs_in(batch)) for batch in batches)]))

    def of_pair(self, pair: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the tokens of the prompt and of the answer."""
        example, other = divmod(pair, len(self))
        return self.prompts.text(example), self.answers.text(other)

    def sizes(self, pairs: Pairs) -> NDArray[np.int64]:
        """Return the tokens of prompt and answer together: shape (n,)."""
        examples, others = np.divmod(pairs, len(self))
        sizes: NDArray[np.int64] = self.prompts.lengths[examples] + self.answers.lengths[others]
        return sizes


@dataclass
class OtherReference:
    """The reference's log-probabilities of answers to other prompts."""

    pairs: Pairs = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Sorted pairs."""
    values: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    """Shape (pairs,)."""

    def of(self, pairs: Pairs) -> NDArray[np.float32]:
        """Return the values of pairs, which must be there: shape (n,)."""
        places, present = self._places(pairs)
        assert present.all(), "the reference has not read these answers"
        return self.values[places]

    def or_nan(self, pairs: Pairs) -> NDArray[np.float32]:
        """Return the values of pairs, NaN where there is none: shape (n,)."""
        places, present = self._places(pairs)
        values = np.full(len(pairs), np.nan, dtype=np.float32)
        values[present] = self.values[places[present]]
        return values

    def _places(self, pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the position of each pair, and whether it is there; both of shape (n,)."""
        if not len(self.pairs):
            return np.zeros(len(pairs), dtype=np.int64), np.zeros(len(pairs), dtype=np.bool_)
        places = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return places, self.pairs[places] == pairs
