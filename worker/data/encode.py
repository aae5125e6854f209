"""Encodes the records of a file to tokens, part by part, so that several processes can share the work."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.formats.detection import check_unambiguous
from trainyard.contract.formats.examples import (
    EXPECTED,
    Chat,
    Completion,
    Example,
    Instruction,
    columns_of,
    parse_example,
)
from trainyard.contract.formats.records import BadRecordError, unreadable
from worker.data.account import counts_of
from worker.data.chat_template import MarkedText
from worker.data.data_files import Chunk
from worker.data.read_limit import SourceLimit
from worker.data.records import BLANK, Unreadable, records_of
from worker.data.token_rows import Segment
from worker.data.tokenizers import Tokenizer, completed_text, whole_text
from worker.data.unread_fields import UnreadFields

_AT_ONCE = 1000
_CHARACTERS_AT_ONCE = 2**20
"""The number of records, and roughly of characters, that a call of the tokenizer encodes."""


@dataclass(frozen=True)
class BadRecord:
    """A record that holds no example."""

    number: int
    """The number of the line in the part of the file, or of the row in the file; from 1."""
    problem: str
    hint: str | None = None


@dataclass
class EncodedChunk:
    """The examples of a part of a file."""

    tokens: NDArray[np.int32]
    """Shape (tokens,)."""
    targets: NDArray[np.bool_]
    """Shape (tokens,)."""
    lengths: NDArray[np.int64]
    """The tokens of each example, shape (examples,)."""
    records: int
    """Lines or rows of the part."""
    counts: Counter[str]
    """Counts of examples; see `worker.data.account`."""
    bad: list[BadRecord] = field(default_factory=list)
    """Bad records, sorted by number."""
    unread: UnreadFields = field(default_factory=lambda: UnreadFields(frozenset()))
    """The records with each field that the format does not read."""


def encode_chunk(
    chunk: Chunk,
    format: str,
    columns: Mapping[str, str],
    tokenizer: Tokenizer,
    *,
    max_bad: int,
    is_detected: bool = False,
    limit: SourceLimit | None = None,
) -> EncodedChunk:
    """Encode the examples of a part of a file within the limit, up to the first bad record beyond `max_bad`.

    Args:
        is_detected: Whether the first record determined the format, so that a record with fields of another format is
            bad.

    Raises:
        RefusedError: The file changed or is damaged.
    """
    encoder = _Encoder(format, columns, tokenizer, max_bad, is_detected, limit)
    segments = list(encoder.segments(chunk))
    none = [Segment(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.bool_))]
    return EncodedChunk(
        np.concatenate([segment.tokens for segment in segments or none], dtype=np.int32),
        np.concatenate([segment.targets for segment in segments or none], dtype=np.bool_),
        np.array([len(segment.tokens) for segment in segments], dtype=np.int64),
        encoder.records,
        encoder.counts,
        encoder.bad,
        encoder.unread,
    )


class _Encoder:
    def __init__(
        self,
        format: str,
        columns: Mapping[str, str],
        tokenizer: Tokenizer,
        max_bad: int,
        is_detected: bool,
        limit: SourceLimit | None,
    ) -> None:
        self._format = format
        self._is_detected = is_detected
        self._columns = columns
        self._tokenizer = tokenizer
        self._max_bad = max_bad
        self._limit = limit
        self.records = 0
        self.counts: Counter[str] = Counter()
        self.bad: list[BadRecord] = []
        self.unread = UnreadFields(columns_of(format, columns))

    def segments(self, chunk: Chunk) -> Iterator[Segment]:
        texts = self._texts(chunk)
        while some := list(_take(texts)):
            yield from self._encoded(some)
        self.bad.sort(key=lambda bad: bad.number)

    def _texts(self, chunk: Chunk) -> Iterator[tuple[int, MarkedText]]:
        columns = columns_of("auto" if self._is_detected else self._format, self._columns)
        records = records_of(chunk, columns)
        for number, record in self._limit.take(records) if self._limit else records:
            self.records += 1
            if record is BLANK:
                continue
            try:
                if isinstance(record, Unreadable):
                    raise unreadable(record, EXPECTED[self._format])
                if self._is_detected:
                    check_unambiguous(record, self._format, self._columns)
                example = parse_example(record, self._format, self._columns)
                marked = self._marked(example)
                self.unread.add(record, self._unwritten(example, marked))
                yield number, marked
            except ValueError as error:
                self._reject(number, error)
                if len(self.bad) > self._max_bad:
                    return

    def _marked(self, example: Example) -> MarkedText:
        match example:
            case str():
                return whole_text(example)
            case Completion():
                return completed_text(example.prompt, example.completion)
            case Instruction():
                chats = self._tokenizer.template is not None
                return self._marked(example.as_chat if chats else example.as_completion)
        marked = self._tokenizer.conversation(example)
        self.counts["tools_unused"] += self._tokenizer.leaves_out_tools(example.messages, example.tools)
        return marked

    def _unwritten(self, example: Example, marked: MarkedText) -> set[str] | None:
        """Return the fields of messages that the model does not see; None if the record has no messages."""
        if not isinstance(example, Chat):
            return None
        return self._tokenizer.unwritten_fields(example.messages, example.tools, marked.text, self.unread.written)

    def _encoded(self, texts: Sequence[tuple[int, MarkedText]]) -> Iterator[Segment]:
        for (number, marked), segment in zip(
            texts, encode_each(self._tokenizer, [one for _, one in texts]), strict=True
        ):
            if isinstance(segment, ValueError):
                self._reject(number, segment)
                continue
            self.counts.update(counts_of(self._tokenizer, marked, segment))
            yield segment

    def _reject(self, number: int, error: ValueError) -> None:
        problem = str(error) if isinstance(error, BadRecordError) else f": {error}"
        self.bad.append(BadRecord(number, problem, getattr(error, "hint", None)))


def encode_each(tokenizer: Tokenizer, texts: Sequence[MarkedText]) -> list[Segment | ValueError]:
    """Return the tokens of each text, or why it cannot be encoded."""
    try:
        return list(tokenizer.encode(texts))
    except ValueError as error:
        if len(texts) == 1:
            return [error]
        return [one for text in texts for one in encode_each(tokenizer, [text])]


def _take(texts: Iterator[tuple[int, MarkedText]]) -> Iterator[tuple[int, MarkedText]]:
    """Yield the next texts that are encoded together."""
    characters = 0
    for number, marked in islice(texts, _AT_ONCE):
        yield number, marked
        characters += len(marked.text)
        if characters >= _CHARACTERS_AT_ONCE:
            return
