"""Rows of preferences from a file: read, encoded and cut."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from trainyard.contract.formats.detection import check_unambiguous, detect_format
from trainyard.contract.formats.preferences import FORMATS, Preference, parse_preference
from trainyard.contract.formats.records import NAMED, BadRecordError, unreadable
from trainyard.contract.spec.text_sources import FORMAT_FIELDS, FileSource, TextSource
from trainyard.contract.wire.data_accounts import DataAccount
from worker.data.account import counts_of, notices_of, template_notices
from worker.data.answers import Answer, AnswerRows, are_equal, labelled_rows, pair_rows
from worker.data.bad_records import BadRecords, NamedRecord
from worker.data.chat_template import MarkedText
from worker.data.cut_examples import CutExamples
from worker.data.data_files import DataFile, find_files
from worker.data.encode import encode_each
from worker.data.notices import Notice
from worker.data.parsed_records import divided
from worker.data.records import RecordPosition, Unreadable, numbered_records
from worker.data.source_account import account_of, answer_facts, template_facts
from worker.data.text_examples import DIRECT, DataAccess
from worker.data.token_rows import Segment
from worker.data.tokenizers import Tokenizer, completed_text
from worker.data.unread_fields import UnreadFields

log = logging.getLogger(__name__)

_AT_ONCE = 1000
"""Records that are encoded together, after which progress is marked."""

Encoded = tuple[Answer, ...]


@dataclass(frozen=True)
class LoadedAnswers:
    """The rows of a source."""

    train: AnswerRows
    held_out: AnswerRows
    """The rows that `data.eval_fraction` holds out."""
    notices: list[Notice]
    """Notices for the user about the rows."""


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
        formats: The allowed formats; if there are several, the first record determines the format.
        max_bad: Records without a preference that are skipped.
        fraction: The value of `data.eval_fraction`. No held-out answer is compared with a training answer.

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
    reader.bad.check()
    named = source.path if isinstance(source.path, str) else ", ".join(source.path)
    parts = divided(section, list(zip(encoded, labels, strict=True)), fraction)
    train, held_out = (_rows(part, length, paired=reader.paired) for part in parts)
    cut = _cut(encoded, length)
    sizes = {"rows": len(train), "held_out_rows": len(held_out)}
    access.on_account(reader.account(encoded, labels, length, cut, sizes))
    _require_rows(section, named, (train, held_out), parts, length, fraction)
    notices = cut.notices(section, length)
    log.info("%s: %d examples", named, len(train) + len(held_out))
    return LoadedAnswers(train, held_out, reader.notices() + notices)


def _require_rows(
    section: str,
    named: str,
    rows: tuple[AnswerRows, AnswerRows],
    parts: tuple[Sequence[tuple[Encoded, bool]], Sequence[tuple[Encoded, bool]]],
    length: int,
    fraction: float,
) -> None:
    """Raise RefusedError unless there are rows for training, and held-out rows if a fraction is held out."""
    texts = (" that is not held out", " among those held out") if fraction else ("", "")
    for own, part, which in zip(rows, parts, texts, strict=True):
        if not len(own) and (fraction or own is rows[0]):
            raise _cut([answers for answers, _ in part], length).refusal(section, named, length, which)


def _cut(encoded: Sequence[Encoded], length: int) -> CutExamples:
    """Count the examples that the maximum length affects."""
    sizes = [max(len(one.prompt) + len(one.answer) for one in answers) for answers in encoded]
    kinds: Counter[str] = Counter()
    for answers, size in zip(encoded, sizes, strict=True):
        is_longer, is_pair = size > length, len(answers) > 1
        if not all(one.segment(length).targets.any() for one in answers):
            kinds["too_long" if is_longer else "empty"] += 1
        elif is_pair and are_equal(answers[0], answers[1], size):
            kinds["equal"] += 1
        elif is_pair and are_equal(answers[0], answers[1], length):
            kinds["equal_when_cut"] += 1
        else:
            kinds["truncated" if is_longer else "whole"] += 1
    del kinds["whole"]
    return CutExamples(len(encoded), longest=max(sizes, default=0), **kinds)


def _rows(examples: Sequence[tuple[Encoded, bool]], length: int, *, paired: bool) -> AnswerRows:
    if paired:
        pairs = [(chosen, rejected) for (chosen, rejected), _ in examples]
        return pair_rows([pair for pair in pairs if not are_equal(*pair, length)], length)
    return labelled_rows([answer for (answer,), _ in examples], [label for _, label in examples], length)


class _Parsed(NamedTuple):
    position: RecordPosition
    record: object
    preference: Preference


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
        self._formats = formats
        self._format = formats[0] if len(formats) == 1 else None
        self._columns = columns
        self._tokenizer = tokenizer
        self.bad = BadRecords(section, max_bad)
        self._limit = access.limit.of_source() if access.limit else None
        self.counts: Counter[str] = Counter()
        """Counts of examples; see `worker.data.account`."""
        self._files: Sequence[DataFile] = ()
        self._unread = UnreadFields(frozenset())
        self.chats = False
        """Whether there are conversations."""

    def notices(self) -> list[Notice]:
        """Return the notices for the user about the records."""
        notices = template_notices(self._section, self._tokenizer, chats=self.chats)
        return self.bad.notices() + notices + notices_of(self._section, self.counts)

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
        names = ("answers_undesirable", "answers_desirable")
        label_counts = Counter(names[label] for label in labels if not self.paired)
        facts = {
            **answer_facts(encoded, labels, self._tokenizer, paired=self.paired),
            "format": self._format or self._formats[0],
            "complete": not (self._limit and self._limit.is_reached),
            **self.bad.facts(),
            "counts": self.counts | label_counts,
            "unread_fields": self._unread.names(self._files),
        }
        return account_of(self._section, facts, template, length, cut=[cut], **sizes)

    @property
    def paired(self) -> bool:
        return self._formats[0] != "unpaired_preference"

    def parsed(self, files: Sequence[DataFile]) -> Iterator[_Parsed]:
        fields = {self._columns.get(field, field) for format in self._formats for field in FORMAT_FIELDS[format]}
        self._files, self._unread = files, UnreadFields(frozenset(fields))
        records = numbered_records(files, frozenset(fields))
        for position, record in self._limit.take(records) if self._limit else records:
            self.bad.read += 1
            try:
                yield _Parsed(position, record, self._parse(record))
            except BadRecordError as error:
                self._reject(position, error)
            self.bad.check_time()

    def _parse(self, record: object) -> Preference:
        if isinstance(record, Unreadable):
            raise unreadable(record, "; or ".join(FORMATS[format] for format in self._formats))
        if self._format is None:
            self._format = detect_format(record, self._columns, self._formats)
        elif len(self._formats) > 1:
            check_unambiguous(record, self._format, self._columns, self._formats)
        return parse_preference(self._format, record, self._columns)

    def _reject(self, position: RecordPosition, error: BadRecordError) -> None:
        record = NamedRecord.at(position, str(error), error.hint)
        if self.bad.count < NAMED:
            log.warning("%s: %s", self._section, record.text)
        self.bad.add(record)

    def encode(self, some: Sequence[_Parsed]) -> Iterator[tuple[Encoded, bool]]:
        marked = [self._marked(one.position, one.preference) for one in some]
        segments = iter(encode_each(self._tokenizer, [text for texts in marked for text in texts]))
        for (position, record, one), texts in zip(some, marked, strict=True):
            answers: list[Answer] = []
            for text, segment in zip(texts, list(islice(segments, len(texts))), strict=True):
                if isinstance(segment, ValueError):
                    self._reject_encoding(position, segment)
                    break
                self.counts.update(counts_of(self._tokenizer, text, segment))
                answers.append(_split(segment))
            if answers and len(answers) == len(texts):
                self._count(record, one, texts)
                yield tuple(answers), one.desirable

    def _count(self, record: object, one: Preference, texts: Sequence[MarkedText]) -> None:
        """Count the fields of a record that the model does not see."""
        if isinstance(one.prompt, str):
            self._unread.add(record)
            return
        self.chats = True
        unwritten: set[str] = set()
        conversations: list[list[Any]] = [[*one.prompt, *answer] for answer in one.answers]
        for messages, text in zip(conversations, texts, strict=True):
            unwritten |= self._tokenizer.unwritten_fields(messages, one.tools, text.text, self._unread.written)
        self._unread.add(record, unwritten)
        with_turns = (
            any(message["role"] != "assistant" for message in messages[len(one.prompt) :]) for messages in conversations
        )
        self.counts["answers_with_turns"] += sum(with_turns)
        self.counts["tools_unused"] += self._tokenizer.leaves_out_tools(conversations[0], one.tools)

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
