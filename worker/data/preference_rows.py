"""Rows of preferences from a file: read, encoded and cut."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from trainyard.contract.formats.preferences import FORMATS, Preference, parse_preference
from trainyard.contract.formats.records import BadRecordError, unreadable
from trainyard.contract.spec.text_sources import FORMAT_FIELDS, FileSource, TextSource
from worker.core.errors import RefusedError
from worker.data.answers import Answer, AnswerRows, labelled_rows, pair_rows
from worker.data.build_tokens import NAMED, NamedRecord, too_many_bad
from worker.data.data_files import DataFile, find_files
from worker.data.parsed_records import divided
from worker.data.records import RecordPosition, Unreadable, numbered_records
from worker.data.text_examples import DIRECT, DataAccess
from worker.data.token_rows import Segment
from worker.data.tokenizers import Tokenizer

log = logging.getLogger(__name__)

_AT_ONCE = 1000
"""Records that are encoded together, after which progress is marked."""

Encoded = tuple[Answer, ...]


def load_answers(
    section: str,
    source: TextSource,
    formats: Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    access: DataAccess = DIRECT,
    *,
    max_bad: int = 0,
    fraction: float = 0.0,
) -> tuple[AnswerRows, AnswerRows]:
    """Return the rows of a source, each of at most `length` tokens, for training and those that are held out; they
    depend on the files and the spec alone.

    Args:
        section: The spec's field that names the files, for messages.
        formats: Those that may be; that of the first record counts for all.
        max_bad: Records without a preference that are skipped.
        fraction: That of `data.eval_fraction`. No held-out answer is compared with one for training.

    Raises:
        RefusedError: A file or a record is invalid, or a link leads out of the roots.
    """
    assert isinstance(source, FileSource), "uploaded files have been located"
    files = find_files(section, source, access.roots)
    reader = _Reader(section, formats, source.columns, tokenizer, max_bad)
    encoded: list[Encoded] = []
    labels: list[bool] = []
    parsed = reader.parsed(files)
    while some := list(islice(parsed, _AT_ONCE)):
        access.on_progress()
        for answers, desirable in reader.encode(some):
            encoded.append(answers)
            labels.append(desirable)
    named = source.path if isinstance(source.path, str) else ", ".join(source.path)
    parts = divided(section, list(zip(encoded, labels, strict=True)), fraction)
    train, held_out = (_rows(part, length, paired=reader.paired) for part in parts)
    for rows, which in ((train, " that is not held out"), (held_out, " among those held out")):
        if not len(rows) and (fraction or rows is train):
            suffix = which if fraction else ""
            raise RefusedError(
                f"{section}: {named} holds no example{suffix} whose answers begin within {length} tokens"
            )
    if left_out := len(encoded) - len(train) - len(held_out):
        log.warning("%s: %d examples were left out: an answer begins after %d tokens", named, left_out, length)
    if any(len(one.prompt) + len(one.answer) > length for answers in encoded for one in answers):
        log.warning("%s: answers that end after %d tokens were truncated", named, length)
    log.info("%s: %d examples", named, len(train) + len(held_out))
    return train, held_out


def _rows(examples: Sequence[tuple[Encoded, bool]], length: int, *, paired: bool) -> AnswerRows:
    if paired:
        return pair_rows([(chosen, rejected) for (chosen, rejected), _ in examples], length)
    return labelled_rows([answer for (answer,), _ in examples], [label for _, label in examples], length)


class _Reader:
    def __init__(
        self, section: str, formats: Sequence[str], columns: Mapping[str, str], tokenizer: Tokenizer, max_bad: int
    ) -> None:
        self._section = section
        self._formats = list(formats)
        self._columns = columns
        self._tokenizer = tokenizer
        self._max_bad = max_bad
        self._bad: list[NamedRecord] = []

    @property
    def paired(self) -> bool:
        return self._formats[0] != "unpaired_preference"

    def parsed(self, files: Sequence[DataFile]) -> Iterator[tuple[RecordPosition, Preference]]:
        fields = {self._columns.get(field, field) for format in self._formats for field in FORMAT_FIELDS[format]}
        for position, record in numbered_records(files, frozenset(fields)):
            try:
                yield position, self._parse(record)
            except BadRecordError as error:
                self._reject(position, error)

    def _parse(self, record: object) -> Preference:
        if isinstance(record, Unreadable):
            raise unreadable(record, "; or ".join(FORMATS[format] for format in self._formats))
        for format in self._formats[:-1]:
            try:
                preference = parse_preference(format, record, self._columns)
            except BadRecordError:
                continue
            self._formats = [format]
            return preference
        try:
            preference = parse_preference(self._formats[-1], record, self._columns)
        except BadRecordError as error:
            if len(self._formats) == 1 or not error.is_misfit:
                raise
            expected = "; or ".join(FORMATS[format] for format in self._formats)
            raise BadRecordError("holds no preference", expected=expected) from None
        self._formats = self._formats[-1:]
        return preference

    def _reject(self, position: RecordPosition, error: BadRecordError) -> None:
        self._bad.append(NamedRecord.at(position, str(error), error.hint))
        log.warning("%s: %s", self._section, self._bad[-1].text)
        if len(self._bad) > self._max_bad:
            raise too_many_bad(self._section, self._bad[:NAMED], self._max_bad)

    def encode(self, numbered: Sequence[tuple[RecordPosition, Preference]]) -> Iterator[tuple[Encoded, bool]]:
        texts = [
            (str(preference.prompt), str(answer))
            for _, preference in numbered
            if not preference.is_chat
            for answer in preference.answers
        ]
        segments = iter(self._tokenizer.completions(texts) if texts else [])
        for position, one in numbered:
            try:
                yield tuple(map(_split, self._segments(one, segments))), one.desirable
            except ValueError as error:
                self._reject(position, BadRecordError(f": {error}"))

    def _segments(self, preference: Preference, of_texts: Iterator[Segment]) -> list[Segment]:
        if not preference.is_chat:
            return list(islice(of_texts, len(preference.answers)))
        prompt: Sequence[object] = preference.prompt
        return [self._tokenizer.answer(prompt, answer, preference.tools) for answer in preference.answers]


def _split(segment: Segment) -> Answer:
    targets = np.flatnonzero(segment.targets)
    start = int(targets[0]) if len(targets) else len(segment.tokens)
    return Answer(segment.tokens[:start], segment.tokens[start:])
