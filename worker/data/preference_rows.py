"""Rows of preferences from a file: read, encoded and cut."""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from worker.core.errors import RefusedError
from worker.data.answers import Answer, AnswerRows, labelled_rows, pair_rows
from worker.data.jsonl import read_lines
from worker.data.preferences import FORMATS, Preference, parse_preference, strings_of
from worker.data.token_rows import Segment
from worker.data.tokenizers import Tokenizer

log = logging.getLogger(__name__)

_AT_ONCE = 1000
"""Records that are encoded together, after which progress is marked."""

Encoded = tuple[Answer, ...]


def load_answers(
    field: str,
    path: str,
    formats: Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    *,
    roots: AllowedRoots = UNRESTRICTED_ROOTS,
    on_progress: Callable[[], None] = lambda: None,
) -> AnswerRows:
    """Return the rows of a file, each of at most `length` tokens; they depend on the file and the spec alone.

    Args:
        field: The spec's field that names the file, for messages.
        formats: Those that may be; that of the first record counts for all.
        roots: Where the file may be.
        on_progress: Called now and then.

    Raises:
        RefusedError: The file or a record is invalid, or a link leads out of the roots.
    """
    reader = _Reader(field, path, formats, tokenizer)
    lines = read_lines(field, path, roots)
    encoded: list[Encoded] = []
    labels: list[bool] = []
    parsed = ((number, reader.parse(number, record)) for number, record in lines)
    while some := list(islice(parsed, _AT_ONCE)):
        on_progress()
        encoded += reader.encode(some)
        labels += [preference.desirable for _, preference in some]
    if reader.paired:
        rows = pair_rows([(chosen, rejected) for chosen, rejected in encoded], length)
    else:
        rows = labelled_rows([answer for (answer,) in encoded], labels, length)
    if not len(rows):
        raise RefusedError(f"{field}: {path} holds no example whose answers begin within {length} tokens")
    if left_out := len(encoded) - len(rows):
        log.warning("%s: %d examples were left out: an answer begins after %d tokens", path, left_out, length)
    if any(len(one.prompt) + len(one.answer) > length for answers in encoded for one in answers):
        log.warning("%s: answers that end after %d tokens were truncated", path, length)
    log.info("%s: %d examples", path, len(rows))
    return rows


class _Reader:
    def __init__(self, field: str, path: str, formats: Sequence[str], tokenizer: Tokenizer) -> None:
        self._where = f"{field}: {path}"
        self._formats = list(formats)
        self._tokenizer = tokenizer

    @property
    def paired(self) -> bool:
        return self._formats[0] != "unpaired_preference"

    def parse(self, number: int, record: object) -> Preference:
        for format in self._formats:
            if (preference := parse_preference(format, record)) is not None:
                self._formats = [format]
                break
        else:
            expected = "; or ".join(FORMATS[format] for format in self._formats)
            raise RefusedError(
                f"{self._where}, line {number} holds no preference: expected one JSON object with {expected}",
                "Correct that line, or set data.format.",
            )
        if not all(_is_text(text) for text in strings_of(preference)):
            raise RefusedError(
                f"{self._where}, line {number} has half of a surrogate pair, which is no character",
                "Remove escapes such as \\ud83d that are not followed by their second half.",
            )
        return preference

    def encode(self, numbered: Sequence[tuple[int, Preference]]) -> list[Encoded]:
        texts = [
            (str(preference.prompt), str(answer))
            for _, preference in numbered
            if not preference.is_chat
            for answer in preference.answers
        ]
        segments = iter(self._tokenizer.completions(texts) if texts else [])
        return [tuple(map(_split, self._segments(number, one, segments))) for number, one in numbered]

    def _segments(self, number: int, preference: Preference, of_texts: Iterator[Segment]) -> list[Segment]:
        if not preference.is_chat:
            return list(islice(of_texts, len(preference.answers)))
        prompt: Sequence[object] = preference.prompt
        try:
            return [self._tokenizer.answer(prompt, answer, preference.tools) for answer in preference.answers]
        except ValueError as error:
            raise RefusedError(f"{self._where}, line {number}: {error}") from None


def _split(segment: Segment) -> Answer:
    targets = np.flatnonzero(segment.targets)
    start = int(targets[0]) if len(targets) else len(segment.tokens)
    return Answer(segment.tokens[:start], segment.tokens[start:])


def _is_text(value: str) -> bool:
    """Return whether tokenizers can encode the value; JSON may escape half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
