"""Texts with labels from files: read, tokenised, and padded to the longest of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainyard.contract.formats.labels import LABELLED, LabelledText, parse_labelled
from trainyard.contract.formats.records import BadRecordError, unreadable
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.text_sources import FORMAT_FIELDS, FileSource, TextSource
from worker.core.errors import RefusedError
from worker.data.build_tokens import NAMED, NamedRecord, too_many_bad
from worker.data.data_files import find_files
from worker.data.examples import Examples, Tensors, TokenCounts
from worker.data.notices import Notice
from worker.data.records import Unreadable, numbered_records
from worker.data.sampler import Indices
from worker.data.text_examples import DIRECT, DataAccess

MAX_CLASSES = 1000
_AT_ONCE = 1000
"""Texts that are tokenised together, after which progress is marked."""


@dataclass(frozen=True)
class LabelledExamples(Examples):
    """Texts as tokens, one after the other, and their classes."""

    tokens: NDArray[np.int32]
    """Shape (tokens of all texts,)."""
    ends: NDArray[np.int64]
    """The end of each text in them, shape (examples,)."""
    labels: NDArray[np.int64]
    """The class of each text, shape (examples,)."""
    padding: int
    """The token after the end of shorter texts."""

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each text, shape (examples,)."""
        return np.diff(self.ends, prepend=0)

    @cached_property
    def token_counts(self) -> TokenCounts:
        """The tokens that the model computes for each text."""
        return TokenCounts(self.lengths, self.lengths.astype(np.float64) ** 2)

    def largest(self, count: int) -> Indices:
        """Return the `count` longest texts for training: int64, shape (count,)."""
        return np.argsort(-self.lengths[: self.train], kind="stable")[:count].astype(np.int64)

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Return tokens and the mask of attention (int64, (n, longest)), and classes (int64, (n,))."""
        lengths = self.lengths[indices]
        tokens = np.full((len(indices), int(lengths.max())), self.padding, dtype=np.int64)
        mask = np.zeros_like(tokens)
        for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            tokens[row, :length] = self.tokens[self.ends[index] - length : self.ends[index]]
            mask[row, :length] = 1
        arrays = (tokens, mask, self.labels[indices])
        return tuple(torch.from_numpy(array).to(device, non_blocking=True) for array in arrays)

    def digest_arrays(self) -> list[NDArray[Any]]:
        """Return what the digest of the training examples is taken of."""
        ends = self.ends[: self.train]
        return [ends, self.tokens[: ends[-1]], self.labels[: self.train]]


@dataclass(frozen=True)
class LabelledFiles:
    """What the files of a section hold."""

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
    notices: list[Notice] = []
    ((section, source),) = data.training_sources.items()
    train = _read(section, source, data, access, notices)
    sets: dict[str, list[LabelledText]] = {}
    present = {one.label for one in train}
    classes = tuple(known) if present <= set(known) else tuple(sorted(present, key=by_number))
    if not 2 <= len(classes) <= MAX_CLASSES:
        raise RefusedError(f"{section}: the examples have {len(classes)} classes, and from 2 to {MAX_CLASSES} can be")
    numbers = {name: number for number, name in enumerate(classes)}
    for field, one in data.evaluation_sources.items():
        name = field.removeprefix("data.eval_sets.") if field.startswith("data.eval_sets.") else ""
        sets[name] = _read(field, one, data, access, notices)
        if {text.label for text in sets[name]} - numbers.keys():
            # The label is of the user's data, and is not quoted.
            raise RefusedError(f"{field}: has a label that no training example has")
    everything = [*train, *(text for texts in sets.values() for text in texts)]
    tokens, cut = _tokenised(everything, tokenizer, length, access)
    if cut:
        message = f"{section}: {cut} texts are longer than {length} tokens and were truncated"
        notices.append(Notice("data_truncated", message, "warning", {"examples": cut, "max_length": length}))
    held_out = {name: len(texts) for name, texts in sets.items()}
    examples = LabelledExamples(
        (),
        len(train),
        sum(held_out.values()),
        held_out_sets={name: size for name, size in held_out.items() if name},
        tokens=np.concatenate(tokens, dtype=np.int32),
        ends=np.cumsum([len(one) for one in tokens], dtype=np.int64),
        labels=np.array([numbers[one.label] for one in everything], dtype=np.int64),
        padding=padding_of(tokenizer),
    )
    return LabelledFiles(examples, classes, notices)


def padding_of(tokenizer: Any) -> int:
    """Return the token that fills shorter texts of a batch up."""
    return next(int(token) for token in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if token is not None)


def by_number(label: str) -> tuple[int, int, str]:
    """Return a sort key with whole numbers first, by value."""
    is_number = label.removeprefix("-").isdecimal() and label.isascii()
    return (0, int(label), label) if is_number else (1, 0, label)


def _read(
    section: str, source: TextSource, data: TextData, access: DataAccess, notices: list[Notice]
) -> list[LabelledText]:
    assert isinstance(source, FileSource), "uploaded files have been located"
    limit = data.max_bad_lines if data.on_bad_line == "skip" else 0
    columns: Mapping[str, str] = source.columns
    fields = frozenset(columns.get(field, field) for field in FORMAT_FIELDS["labelled_text"])
    texts: list[LabelledText] = []
    bad: list[NamedRecord] = []
    for position, record in numbered_records(find_files(section, source, access.roots), fields):
        try:
            if isinstance(record, Unreadable):
                raise unreadable(record, LABELLED["labelled_text"])
            texts.append(parse_labelled(record, columns))
        except BadRecordError as error:
            bad.append(NamedRecord.at(position, str(error), error.hint))
            if len(bad) > limit:
                raise too_many_bad(section, bad[:NAMED], limit) from None
        if len(texts) % _AT_ONCE == 0:
            access.on_progress()
    if not texts:
        raise RefusedError(f"{section}: the files hold no example")
    if bad:
        listed = "; ".join(record.text for record in bad[:NAMED])
        message = f"{section}: {len(bad)} bad lines were skipped: {listed}"
        notices.append(Notice("bad_lines_skipped", message, "warning", {"skipped": len(bad)}))
    return texts


def _tokenised(
    texts: Sequence[LabelledText], tokenizer: Any, length: int, access: DataAccess
) -> tuple[list[list[int]], int]:
    """Return the tokens of each text with the tokenizer's special ones, and how many texts were cut."""
    rows: list[list[int]] = []
    waiting = iter(texts)
    cut = 0
    while some := [one.text for one in islice(waiting, _AT_ONCE)]:
        access.on_progress()
        whole = tokenizer(some)["input_ids"]
        cut += sum(len(one) > length for one in whole)
        rows += tokenizer(some, truncation=True, max_length=length)["input_ids"]
    # A model computes at least one token of an empty text.
    padding = [0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id]
    return [one or padding for one in rows], cut
