"""Examples from a file of JSON lines: texts, prompts with completions, or conversations."""

import json
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots, OutsideRootsError
from trainyard.contract.spec.text_data import TextFiles
from worker.core.errors import RefusedError
from worker.data.token_rows import Segment, TokenRows, build_token_rows, pack
from worker.data.tokenizers import Tokenizer

log = logging.getLogger(__name__)

_LINES_PER_CHUNK = 1000
_FORMATS = {
    "text": "`text`, a string",
    "completion": "`prompt` and `completion`, two strings",
    "chat": "`messages`, a list of objects with `role` and `content`, both strings, one `role` being `assistant`",
}
_ROLES = ("system", "user", "assistant", "tool", "developer")

Line = tuple[int, Any]


def load_rows(
    field: str,
    path: str,
    data: TextFiles,
    tokenizer: Tokenizer,
    length: int,
    *,
    roots: AllowedRoots = UNRESTRICTED_ROOTS,
    on_progress: Callable[[], None] = lambda: None,
) -> TokenRows:
    """Return the rows of a file, each of at most `length` tokens; they depend on the file and the spec alone.

    Args:
        field: The spec's field that names the file, for messages.
        roots: Where the file may be.
        on_progress: Called after each 1,000 lines, so that the watchdog does not take a long file for a stall.

    Raises:
        RefusedError: The file or a line is invalid, or a link leads out of the roots. The message names the line, and
            never quotes it.
    """
    reader = _Reader(field, path, data.format, tokenizer, roots, on_progress)
    segments = (part for segment in reader.segments() for part in _cut(segment, length, split=reader.format == "text"))
    useful = (segment for segment in segments if segment.targets[1:].any())
    rows = list(pack(useful, length) if data.packing else ([segment] for segment in useful))
    if not rows:
        raise RefusedError(f"{field}: {path} holds no example with a target token")
    result = build_token_rows(rows)
    log.info("%s: %d rows of %d tokens, %d of them targets", path, len(rows), len(result.tokens), result.targets.sum())
    if reader.format != "chat" and not tokenizer.has_end_token:
        log.warning("%s: the tokenizer has no end token, so the model does not learn where an example ends", path)
    if reader.format != "text" and (long := reader.longer_than(length)):
        log.warning("%s: %d examples are longer than %d tokens and were truncated", path, long, length)
    return result


def read_lines(field: str, path: str, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> Iterator[Line]:
    """Yield the number and the value of each line that is not blank.

    Raises:
        RefusedError: The file cannot be read, a line is not JSON, or a link leads out of the roots.
    """
    try:
        with Path(path).open("rb") as file:
            # Of the open file, so that nobody can replace a link in between.
            roots.resolve(Path(f"/proc/self/fd/{file.fileno()}"))
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    try:
                        yield number, json.loads(raw)
                    except ValueError:
                        raise RefusedError(f"{field}: {path}, line {number} is not JSON") from None
    except OutsideRootsError:
        message = "leads out of the folders that this service allows (TRAINYARD_ALLOWED_ROOTS)"
        raise RefusedError(f"{field}: {path} {message}") from None
    except OSError as error:
        raise RefusedError(
            f"{field}: {path} cannot be read: {error.strerror}",
            "Give the path of a file that the workers' nodes can read.",
        ) from None


def _cut(segment: Segment, length: int, *, split: bool) -> Iterator[Segment]:
    """Yield segments of at most `length` tokens. With `split`, each starts with the previous one's last token, so every
    token is a target once; otherwise the rest is dropped, since an answer's rest would lack the question."""
    step = length - 1
    stop = max(1, len(segment.tokens) - 1) if split else 1
    for start in range(0, stop, step):
        yield Segment(segment.tokens[start : start + length], segment.targets[start : start + length])


class _Reader:
    def __init__(
        self,
        field: str,
        path: str,
        format: str,
        tokenizer: Tokenizer,
        roots: AllowedRoots,
        on_progress: Callable[[], None],
    ) -> None:
        self._field = field
        self._path = Path(path)
        self._tokenizer = tokenizer
        self._roots = roots
        self._on_progress = on_progress
        self._lengths: dict[int, int] = {}
        self.format = format

    def longer_than(self, length: int) -> int:
        return sum(count for size, count in self._lengths.items() if size > length)

    def segments(self) -> Iterator[Segment]:
        lines = self._lines()
        while some := list(islice(lines, _LINES_PER_CHUNK)):
            self._on_progress()
            for segment in self._encoded(some):
                size = len(segment.tokens)
                self._lengths[size] = self._lengths.get(size, 0) + 1
                yield segment

    def _lines(self) -> Iterator[Line]:
        try:
            with self._path.open("rb") as file:
                # Of the open file, so that nobody can replace a link in between.
                self._roots.resolve(Path(f"/proc/self/fd/{file.fileno()}"))
                for number, raw in enumerate(file, 1):
                    if raw.strip():
                        yield number, self._checked(number, raw)
        except OutsideRootsError:
            message = "leads out of the folders that this service allows (TRAINYARD_ALLOWED_ROOTS)"
            raise RefusedError(f"{self._field}: {self._path} {message}") from None
        except OSError as error:
            raise RefusedError(
                f"{self._field}: {self._path} cannot be read: {error.strerror}",
                "Give the path of a file that the workers' nodes can read.",
            ) from None

    def _checked(self, number: int, raw: bytes) -> Any:
        try:
            line = json.loads(raw)
        except ValueError:
            raise self._broken(number, "is not JSON") from None
        if self.format == "auto":
            detected = next((name for name in _FORMATS if _parse_as(name, line) is not None), None)
            if detected is None:
                raise self._broken(number, "has none of the known formats")
            self.format = detected
        example = _parse_as(self.format, line)
        if example is None:
            raise self._broken(number, f"does not have format `{self.format}`")
        if not all(_is_text(part) for part in _strings(example)):
            raise RefusedError(
                f"{self._field}: {self._path}, line {number} has half of a surrogate pair, which is no character",
                "Remove escapes such as \\ud83d that are not followed by their second half.",
            )
        return example

    def _encoded(self, lines: list[Line]) -> list[Segment]:
        examples = [example for _, example in lines]
        if self.format == "text":
            return self._tokenizer.texts(examples)
        if self.format == "completion":
            return self._tokenizer.completions(examples)
        return [self._chat(number, example) for number, example in lines]

    def _chat(self, number: int, example: Any) -> Segment:
        try:
            return self._tokenizer.chat(example)
        except ValueError as error:
            raise RefusedError(f"{self._field}: {self._path}, line {number}: {error}") from None

    def _broken(self, number: int, problem: str) -> RefusedError:
        expected = _FORMATS.get(self.format) or "; or ".join(_FORMATS.values())
        return RefusedError(
            f"{self._field}: {self._path}, line {number} {problem}: expected one JSON object with {expected}",
            "Correct that line, or set data.format.",
        )


def _parse_as(name: str, line: Any) -> Any:
    """Return the example of a line, or None if it does not have that format."""
    if not isinstance(line, dict):
        return None
    if name == "text":
        return _string(line.get("text"))
    if name == "completion":
        prompt, completion = _string(line.get("prompt")), _string(line.get("completion"))
        return None if prompt is None or completion is None else (prompt, completion)
    messages = line.get("messages")
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        return None
    return messages if any(message["role"] == "assistant" for message in messages) else None


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    return message.get("role") in _ROLES and isinstance(message.get("content"), str)


def _strings(example: Any) -> Iterator[str]:
    if isinstance(example, str):
        yield example
    elif isinstance(example, tuple):
        yield from example
    else:
        yield from (message["content"] for message in example)


def _is_text(value: str) -> bool:
    """Return whether tokenizers can encode the value; JSON may escape half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None
