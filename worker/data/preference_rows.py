"""Rows of preferences from a file: read, encoded and cut."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from trainyard.contract.formats.preferences import FORMATS, Preference, parse_preference
from trainyard.contract.formats.records import BadRecordError, unreadable
from trainyard.contract.spec.text_sources import FORMAT_FIELDS, FileSource, TextSource
from trainyard.contract.wire.data_accounts import DataAccount
from worker.data.account import counts_of, notices_of, template_notices
from worker.data.answers import Answer, AnswerRows, labelled_rows, pair_rows
from worker.data.build_tokens import NAMED, NamedRecord, skipped_text, too_many_bad
from worker.data.chat_template import MarkedText
from worker.data.cut_examples import CutExamples
from worker.data.data_files import DataFile, find_files
from worker.data.encode import encode_each
from worker.data.notices import Notice
from worker.data.parsed_records import divided
from worker.data.records import RecordPosition, Unreadable, numbered_records
from worker.data.source_account import BadRecordReasons, account_of, answer_facts, template_facts
from worker.data.text_examples import DIRECT, DataAccess
from worker.data.token_rows import Segment
from worker.data.tokenizers import Tokenizer, completed_text

log = logging.getLogger(__name__)

_AT_ONCE = 1000
"""Records that are encoded together, after which progress is marked."""

Encoded = tuple[Answer, ...]


@dataclass(frozen=True)
class LoadedAnswers:
    """The rows of a source."""

    train: AnswerRows
    held_out: AnswerRows
    """Those of `data.eval_fraction`."""
    notices: list[Notice]
    """What a user should know about them."""


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
) -> LoadedAnswers:
    """Return the rows of a source, each of at most `length` tokens; they depend on the files and the spec alone.

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
    reader = _Reader(section, formats, source.columns, tokenizer, max_bad, access)
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
    cut = _cut(encoded, length)
    sizes = {"rows": len(train), "held_out_rows": len(held_out)}
    access.on_account(reader.account(encoded, labels, length, cut, sizes))
    for rows, part, which in (
        (train, parts[0], " that is not held out"),
        (held_out, parts[1], " among those held out"),
    ):
        if not len(rows) and (fraction or rows is train):
            raise _cut([answers for answers, _ in part], length).refusal(
                section, named, length, which if fraction else ""
            )
    notices = cut.notices(section, length)
    log.info("%s: %d examples", named, len(train) + len(held_out))
    return LoadedAnswers(train, held_out, reader.notices() + notices)


def _cut(encoded: Sequence[Encoded], length: int) -> CutExamples:
    """Return what the maximum length does to these examples."""
    sizes = [max(len(one.prompt) + len(one.answer) for one in answers) for answers in encoded]
    longer = [size > length for size in sizes]
    used = [all(one.segment(length).targets.any() for one in answers) for answers in encoded]
    pairs = list(zip(longer, used, strict=True))
    counts = (pairs.count((True, True)), pairs.count((True, False)), pairs.count((False, False)))
    return CutExamples(len(encoded), *counts, max(sizes, default=0))


def _rows(examples: Sequence[tuple[Encoded, bool]], length: int, *, paired: bool) -> AnswerRows:
    if paired:
        return pair_rows([(chosen, rejected) for (chosen, rejected), _ in examples], length)
    return labelled_rows([answer for (answer,), _ in examples], [label for _, label in examples], length)


class _Reader:
    def __init__(
        self,
        section: str,
        formats: Sequence[str],
        columns: Mapping[str, str],
        tokenizer: Tokenizer,
        max_bad: int,
        access: DataAccess,
    ) -> None:
        self._section = section
        self._formats = list(formats)
        self._columns = columns
        self._tokenizer = tokenizer
        self._max_bad = max_bad
        self._limit = access.limit.of_source() if access.limit else None
        self._bad: list[NamedRecord] = []
        self._reasons = BadRecordReasons()
        self.counts: Counter[str] = Counter()
        """What became of the examples; see `worker.data.account`."""
        self.chats = False
        """Whether there are conversations."""

    def notices(self) -> list[Notice]:
        """Return what a user should know of the records."""
        notices = template_notices(self._section, self._tokenizer, chats=self.chats)
        notices += notices_of(self._section, self.counts)
        if not self._bad:
            return notices
        message = skipped_text(self._section, len(self._bad), self._bad[:NAMED])
        return [Notice("bad_lines_skipped", message, "warning", {"skipped": len(self._bad)}), *notices]

    def account(
        self,
        encoded: Sequence[Encoded],
        labels: Sequence[bool],
        length: int,
        cut: CutExamples,
        sizes: Mapping[str, int],
    ) -> DataAccount:
        """Return the account of these examples. `sizes`: the numbers of rows, by the fields of the account."""
        template = template_facts(self._tokenizer) if self.chats else None
        facts = {
            **answer_facts(encoded, labels, self._tokenizer, paired=self.paired),
            "format": self._formats[0],
            "complete": not (self._limit and self._limit.is_reached),
            "bad": len(self._bad),
            "reasons": self._reasons.facts(),
            "counts": dict(self.counts),
        }
        return account_of(self._section, facts, template, length, cut=[cut], **sizes)

    @property
    def paired(self) -> bool:
        return self._formats[0] != "unpaired_preference"

    def parsed(self, files: Sequence[DataFile]) -> Iterator[tuple[RecordPosition, Preference]]:
        fields = {self._columns.get(field, field) for format in self._formats for field in FORMAT_FIELDS[format]}
        records = numbered_records(files, frozenset(fields))
        for position, record in self._limit.take(records) if self._limit else records:
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
        self._reasons.add(str(error), str(position))
        log.warning("%s: %s", self._section, self._bad[-1].text)
        if len(self._bad) > self._max_bad:
            raise too_many_bad(self._section, self._bad[:NAMED], self._max_bad)

    def encode(self, numbered: Sequence[tuple[RecordPosition, Preference]]) -> Iterator[tuple[Encoded, bool]]:
        marked = [self._marked(position, one) for position, one in numbered]
        segments = iter(encode_each(self._tokenizer, [text for texts in marked for text in texts]))
        for (position, one), texts in zip(numbered, marked, strict=True):
            answers: list[Answer] = []
            for text, segment in zip(texts, list(islice(segments, len(texts))), strict=True):
                if isinstance(segment, ValueError):
                    self._reject_encoding(position, segment)
                    break
                self.counts.update(counts_of(self._tokenizer, text, segment))
                answers.append(_split(segment))
            if answers and len(answers) == len(texts):
                if not isinstance(one.prompt, str):
                    self.chats = True
                    messages = [*one.prompt, *one.answers[0]]
                    self.counts["tools_unused"] += self._tokenizer.leaves_out_tools(messages, one.tools)
                yield tuple(answers), one.desirable

    def _marked(self, position: RecordPosition, one: Preference) -> list[MarkedText]:
        """Return the texts of the answers; none if the record is refused."""
        if isinstance(one.prompt, str):
            return [completed_text(one.prompt, str(answer)) for answer in one.answers]
        try:
            return [self._tokenizer.answer(one.prompt, answer, one.tools) for answer in one.answers]
        except ValueError as error:
            self._reject_encoding(position, error)
            return []

    def _reject_encoding(self, position: RecordPosition, error: ValueError) -> None:
        self._reject(position, BadRecordError(f": {error}", getattr(error, "hint", None)))


def _split(segment: Segment) -> Answer:
    targets = np.flatnonzero(segment.targets)
    start = int(targets[0]) if len(targets) else len(segment.tokens)
    return Answer(segment.tokens[:start], segment.tokens[start:])
