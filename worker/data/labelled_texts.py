"""Texts with labels from files: read, tokenised, and padded to the longest of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainyard.contract.formats.labels import LabelledText, parse_labelled
from trainyard.contract.spec.text_data import TextData
from worker.core.errors import RefusedError
from worker.data.examples import Examples, Tensors, TokenCounts
from worker.data.mixture import mixture_of
from worker.data.notices import Notice
from worker.data.parsed_records import RecordReader, padding_of
from worker.data.sampler import Indices
from worker.data.text_examples import DIRECT, DataAccess
from worker.data.token_lists import TokenLists

MAX_CLASSES = 1000


@dataclass(frozen=True)
class LabelledExamples(Examples):
    """Texts and their classes."""

    texts: TokenLists
    labels: NDArray[np.int64]
    """The class of each text, shape (examples,)."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each text, shape (examples,)."""
        return self.texts.lengths

    @cached_property
    def token_counts(self) -> TokenCounts:
        """The tokens that the model computes for each text."""
        return TokenCounts(self.lengths, self.lengths.astype(np.float64) ** 2)

    def largest(self, count: int) -> Indices:
        """Return the `count` longest texts for training: int64, shape (count,)."""
        return np.argsort(-self.lengths[: self.train], kind="stable")[:count].astype(np.int64)

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Return tokens and the mask of attention (int64, (n, longest)), and classes (int64, (n,))."""
        arrays = (*self.texts.padded(indices), self.labels[indices])
        return tuple(torch.from_numpy(array).to(device, non_blocking=True) for array in arrays)

    def digest_arrays(self) -> list[NDArray[Any]]:
        """Return the arrays that identify the training examples."""
        ends = self.texts.ends[: self.train]
        return [ends, self.texts.tokens[: ends[-1]], self.labels[: self.train]]


@dataclass(frozen=True)
class LabelledFiles:
    """The examples in the files of a section, with notices about them."""

    examples: LabelledExamples
    classes: tuple[str, ...]
    """The names of the classes, by their numbers."""
    notices: list[Notice]


def load_labelled(
    data: TextData, tokenizer: Any, length: int, known: Sequence[str] = (), access: DataAccess = DIRECT
) -> LabelledFiles:
    """Return the texts of a section, each of at most `length` tokens.

    Args:
        known: Names of the classes that the model has. They are kept if the training examples have no other.

    Raises:
        RefusedError: A file or a record is invalid, or an evaluation has a class that the training examples lack.
    """
    reader = RecordReader(data, "labelled_text", parse_labelled, access)
    parts = reader.parts()
    reader.report_accounts(parts, lambda one: {"text": one.text}, tokenizer, length, lambda one: one.label)
    training = [part for part in parts if part.name is None]
    held_out = [part for part in parts if part.name is not None]
    fields = data.training_sources
    # As for images, held-out records of the training files count.
    present = {one.label for part in parts if part.field in fields for one in part.records}
    classes = tuple(known) if present <= set(known) else tuple(sorted(present, key=by_number))
    if not 2 <= len(classes) <= MAX_CLASSES:
        section = next(iter(fields)) if len(fields) == 1 else "data.sources"
        raise RefusedError(f"{section}: the examples have {len(classes)} classes, and from 2 to {MAX_CLASSES} can be")
    numbers = {name: number for number, name in enumerate(classes)}
    for part in held_out:
        if {text.label for text in part.records} - numbers.keys():
            # The label is of the user's data, and is not quoted.
            raise RefusedError(f"{part.field}: has a label that no training example has")
    everything: list[LabelledText] = [text for part in parts for text in part.records]
    rows = reader.tokenise([one.text for one in everything], tokenizer, length)
    mixture = mixture_of(data, [len(part.records) for part in training])
    examples = LabelledExamples(
        (),
        sum(len(part.records) for part in training),
        sum(len(part.records) for part in held_out),
        held_out_sets={part.name: len(part.records) for part in held_out if part.name},
        mixture=mixture,
        texts=TokenLists.of(rows, padding_of(tokenizer)),
        labels=np.array([numbers[one.label] for one in everything], dtype=np.int64),
    )
    return LabelledFiles(examples, classes, reader.notices + ([mixture.notice()] if mixture else []))


def by_number(label: str) -> tuple[int, int, str]:
    """Return a sort key with whole numbers first, by value."""
    is_number = label.removeprefix("-").isdecimal() and label.isascii()
    return (0, int(label), label) if is_number else (1, 0, label)
