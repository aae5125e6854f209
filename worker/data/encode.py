"""From the records of a part of a file to tokens. Part by part, so that several processes can share the work."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

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
from worker.data.data_files import Chunk
from worker.data.records import BLANK, Unreadable, records_of
from worker.data.token_rows import Segment
from worker.data.tokenizers import Tokenizer

_AT_ONCE = 1000
_CHARACTERS_AT_ONCE = 2**20
"""Records, and about how many characters, are encoded by one call of the tokenizer."""


@dataclass(frozen=True)
class BadRecord:
    """A record that holds no example."""

    number: int
    """Its line in the part of the file, or its row in the file; from 1."""
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
    unused_tools: int
    """Conversations whose `tools` the chat template leaves out."""
    bad: list[BadRecord] = field(default_factory=list)
    """In the order of their numbers."""


def encode_chunk(
    chunk: Chunk,
    format: str,
    columns: Mapping[str, str],
    tokenizer: Tokenizer,
    *,
    max_bad: int,
    is_detected: bool = False,
) -> EncodedChunk:
    """Encode the examples of a part of a file, up to the bad record after `max_bad` ones.

    Args:
        is_detected: Whether the format is that of the first record, so that one with the fields of another is bad.

    Raises:
        RefusedError: The file changed or is damaged.
    """
    encoder = _Encoder(format, columns, tokenizer, max_bad, is_detected)
    segments = list(encoder.segments(chunk))
    none = [Segment(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.bool_))]
    return EncodedChunk(
        np.concatenate([segment.tokens for segment in segments or none], dtype=np.int32),
        np.concatenate([segment.targets for segment in segments or none], dtype=np.bool_),
        np.array([len(segment.tokens) for segment in segments], dtype=np.int64),
        encoder.records,
        encoder.unused_tools,
        encoder.bad,
    )


class _Encoder:
    def __init__(
        self, format: str, columns: Mapping[str, str], tokenizer: Tokenizer, max_bad: int, is_detected: bool
    ) -> None:
        self._format = format
        self._is_detected = is_detected
        self._columns = columns
        self._tokenizer = tokenizer
        self._max_bad = max_bad
        self.records = 0
        self.unused_tools = 0
        self.bad: list[BadRecord] = []

    def segments(self, chunk: Chunk) -> Iterator[Segment]:
        examples = self._examples(chunk)
        while some := list(_take(examples)):
            yield from self._encoded(some)
        self.bad.sort(key=lambda bad: bad.number)

    def _examples(self, chunk: Chunk) -> Iterator[tuple[int, Example]]:
        columns = columns_of("auto" if self._is_detected else self._format, self._columns)
        for number, record in records_of(chunk, columns):
            self.records += 1
            if record is BLANK:
                continue
            try:
                if isinstance(record, Unreadable):
                    raise unreadable(record, EXPECTED[self._format])
                if self._is_detected:
                    check_unambiguous(record, self._format, self._columns)
                example = parse_example(record, self._format, self._columns)
            except BadRecordError as error:
                self._reject(number, str(error), error.hint)
                if len(self.bad) > self._max_bad:
                    return
            else:
                yield number, self._as_encodable(example)

    def _as_encodable(self, example: Example) -> Example:
        if isinstance(example, Instruction):
            return example.as_chat if self._tokenizer.has_chat_template else example.as_completion
        return example

    def _encoded(self, examples: Sequence[tuple[int, Example]]) -> Iterator[Segment]:
        plain = [example for _, example in examples if not isinstance(example, Chat)]
        encoded = iter(self._encode_plain(plain) if plain else [])
        for number, example in examples:
            if not isinstance(example, Chat):
                yield next(encoded)
                continue
            try:
                segment = self._tokenizer.chat(example)
            except ValueError as error:
                self._reject(number, f": {error}", getattr(error, "hint", None))
                continue
            self.unused_tools += self._tokenizer.leaves_out_tools(example.messages, example.tools)
            yield segment

    def _encode_plain(self, examples: list[Any]) -> list[Segment]:
        if isinstance(examples[0], Completion):
            return self._tokenizer.completions([(one.prompt, one.completion) for one in examples])
        return self._tokenizer.texts(examples)

    def _reject(self, number: int, problem: str, hint: str | None) -> None:
        self.bad.append(BadRecord(number, problem, hint))


def _take(examples: Iterator[tuple[int, Example]]) -> Iterator[tuple[int, Example]]:
    """Yield the next examples that are encoded together."""
    characters = 0
    for number, example in islice(examples, _AT_ONCE):
        yield number, example
        characters += len(example) if isinstance(example, str) else 0
        if characters >= _CHARACTERS_AT_ONCE:
            return
