"""Pairs of texts from files, and the groups of pairs that are compared with each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainyard.contract.formats.text_pairs import TextPair, parse_pair
from trainyard.contract.spec.text_data import TextData
from worker.core.errors import RefusedError
from worker.data.examples import BatchTokens, Examples, Tensors
from worker.data.mixture import mixture_of
from worker.data.notices import Notice
from worker.data.parsed_records import RecordPart, RecordReader, padding_of
from worker.data.sampler import EpochOrder, Indices, NumberedByEpoch, WholePass
from worker.data.text_examples import DIRECT, DataAccess
from worker.data.token_lists import TokenLists

_LARGEST = -1
"""The number of the group of the longest pairs, which no epoch has; it is computed to measure memory."""


@dataclass(frozen=True)
class PairGroups(Examples):
    """Pairs in groups: each group is an example.

    The pairs of an epoch, drawn by weight from several sources, are shuffled and divided into groups; pairs that
    fill no group are left out of the epoch.
    A group for training has the number `epoch * (train + held_out) + group`, so that a batch is a function of its
    numbers, as for other examples. Held-out groups never change.
    """

    texts: TokenLists
    """The distinct texts."""
    pairs: NDArray[np.int64]
    """The numbers of the texts of each pair: shape (training pairs, 2), or (training pairs, 3) with a negative."""
    held_out_groups: Sequence[NDArray[np.int64]]
    """The numbers of the texts of the pairs of each held-out group."""
    size: int
    """Pairs of a group for training."""
    seed: int
    shuffle: bool

    def order_by_epoch(self) -> NumberedByEpoch:
        """Return the groups of each epoch in order; the pairs are shuffled, not the groups."""
        groups = WholePass(self.train, seed=self.seed, shuffle=False)
        return NumberedByEpoch(groups, self.train + self.held_out)

    def group(self, number: int) -> NDArray[np.int64]:
        """Return the texts of the pairs of a group: int64, shape (pairs, 2 or 3)."""
        if number == _LARGEST:
            return self.pairs[self._by_length[: self.size]]
        epoch, index = divmod(number, self.train + self.held_out)
        if index >= self.train:
            return self.held_out_groups[index - self.train]
        return self.pairs[self._shuffled(epoch)[index * self.size : (index + 1) * self.size]]

    def pairs_in(self, indices: Indices) -> int:
        """Return the number of pairs of these groups."""
        numbers = np.where(indices == _LARGEST, 0, indices % (self.train + self.held_out))
        held_out = sum(len(self.held_out_groups[index - self.train]) for index in numbers[numbers >= self.train])
        return int((numbers < self.train).sum()) * self.size + held_out

    def largest(self, count: int) -> Indices:
        """Return the group of the longest pairs, `count` times."""
        return np.full(count, _LARGEST, dtype=np.int64)

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Return the texts of groups: all anchors, then all positives, then all negatives if there are any.

        Returns:
            Tokens and the mask of attention, (texts of a pair * pairs, longest); the numbers of the texts, (texts of a
            pair, pairs); and the group of each pair, (pairs,). All are int64.
        """
        groups = [self.group(int(number)) for number in indices]
        texts = np.ascontiguousarray(np.concatenate(groups).T)
        members = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        arrays = (*self.texts.padded(texts.reshape(-1)), texts, members)
        return tuple(torch.from_numpy(array).to(device, non_blocking=True) for array in arrays)

    @property
    def token_counts(self) -> "GroupTokens":
        """The tokens that the model computes for each group."""
        return GroupTokens(self)

    def digest_arrays(self) -> list[NDArray[Any]]:
        """Return the arrays that identify the training examples."""
        return [self.texts.tokens, self.texts.ends, self.pairs, np.array([self.size])]

    def _shuffled(self, epoch: int) -> Indices:
        cached = self._epoch.get(epoch)
        if cached is None:
            self._epoch.clear()
            cached = self._epoch[epoch] = self._passes.of_epoch(epoch)
        return cached

    @cached_property
    def _epoch(self) -> dict[int, Indices]:
        return {}

    @cached_property
    def _passes(self) -> EpochOrder:
        if self.mixture is not None:
            return self.mixture.order(seed=self.seed, shuffle=self.shuffle)
        return WholePass(len(self.pairs), seed=self.seed, shuffle=self.shuffle)

    @cached_property
    def _by_length(self) -> Indices:
        """The training pairs, sorted by their longest text, the longest first."""
        return np.argsort(-self.texts.lengths[self.pairs].max(axis=1), kind="stable")


@dataclass(frozen=True)
class GroupTokens:
    """Counts the tokens of groups, as `TokenCounts` does for other examples."""

    groups: PairGroups

    def of(self, indices: Indices) -> BatchTokens:
        texts = [self.groups.group(int(number)).reshape(-1) for number in indices]
        lengths = self.groups.texts.lengths[np.concatenate(texts)]
        return BatchTokens(int(lengths.sum()), float((lengths.astype(np.float64) ** 2).sum()))


def load_pairs(
    data: TextData, tokenizer: Any, length: int, size: int, seed: int, access: DataAccess = DIRECT
) -> tuple[PairGroups, list[Notice]]:
    """Return the pairs of a section, each text of at most `length` tokens, and notices for the user.

    Args:
        size: Pairs of a group.

    Raises:
        RefusedError: A file or a record is invalid, there are not enough pairs, or only some have a negative.
    """
    reader = RecordReader(data, "text_pair", parse_pair, access)
    # Pairs are compared with each other.
    parts = reader.parts(least=2)
    reader.report_accounts(parts, _texts_by_name, tokenizer, length)
    training = [part for part in parts if part.name is None]
    held_out = [part for part in parts if part.name is not None]
    section = ", ".join(part.field for part in training)
    count = sum(len(part.records) for part in training)
    if count < size:
        suffix = " that are not held out" if data.eval_fraction else ""
        raise RefusedError(
            f"{section}: the files hold {count} pairs{suffix}, fewer than embedding.group_size, which is {size}"
        )
    for part in held_out:
        if len(part.records) < 2:
            raise RefusedError(f"{part.field}: the files hold one pair, and pairs are compared with each other")
    _check_negatives(parts)
    numbers: dict[str, int] = {}
    rows = [_numbered(part.records, numbers) for part in parts]
    groups = [np.array_split(one, max(1, len(one) // size)) for one in rows[len(training) :]]
    tokens = reader.tokenise(list(numbers), tokenizer, length)
    mixture = mixture_of(data, [len(part.records) for part in training])
    examples = PairGroups(
        (),
        count // size,
        sum(map(len, groups)),
        held_out_sets={part.name: len(own) for part, own in zip(held_out, groups, strict=True) if part.name},
        mixture=mixture,
        texts=TokenLists.of(tokens, padding_of(tokenizer)),
        pairs=np.concatenate(rows[: len(training)]),
        held_out_groups=[group for own in groups for group in own],
        size=size,
        seed=seed,
        shuffle=data.shuffle,
    )
    return examples, reader.notices + ([mixture.notice()] if mixture else [])


def _texts_by_name(pair: TextPair) -> dict[str, str]:
    texts = {"anchor": pair.anchor, "positive": pair.positive, "negative": pair.negative}
    return {name: text for name, text in texts.items() if text is not None}


def _check_negatives(parts: Sequence[RecordPart[TextPair]]) -> None:
    """Raise RefusedError if only some pairs have a negative."""
    has_negative = parts[0].records[0].negative is not None
    for part in parts:
        if any((pair.negative is not None) != has_negative for pair in part.records):
            raise RefusedError(
                f"{part.field}: some pairs have a `negative` and others have none", "Give one to all or none."
            )


def _numbered(pairs: Sequence[TextPair], numbers: dict[str, int]) -> NDArray[np.int64]:
    """Return the numbers of the texts of pairs: shape (pairs, 2 or 3). New texts are added to `numbers`."""
    rows = []
    for pair in pairs:
        texts = [text for text in (pair.anchor, pair.positive, pair.negative) if text is not None]
        rows.append([numbers.setdefault(text, len(numbers)) for text in texts])
    return np.array(rows, dtype=np.int64)
