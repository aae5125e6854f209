"""Checks a data file while it arrives, in chunks of any size."""

import json
from typing import Any, cast

import msgspec

from service.core.errors import InvalidRequestError
from trainyard.contract.bounds import MAX_DEPTH, check_plain_data
from trainyard.contract.data_files import MAX_LINE_BYTES
from trainyard.contract.formats.detection import ALL_EXPECTED, check_record, detect_format
from trainyard.contract.formats.records import MAX_BLANK_LINES, TOO_MANY_BLANK, BadRecordError, json_problem
from trainyard.contract.wire.data_files import FileFormat

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BadLineError(InvalidRequestError):
    """A line of a data file cannot be used; the message has its number and the reason."""

    code = "invalid_line"

    def __init__(self, number: int, reason: str):
        super().__init__(f"line {number} {reason}", param="file")
        self.line = number


class LineChecker:
    """Finds the format of a file and its first bad line, with at most one line in memory.

    Attributes:
        format: The format; None before the first line.
        examples: Number of lines that are not blank.
        number: Number of lines that were checked.
    """

    def __init__(self, format: FileFormat | None = None, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.format = format
        self.examples = 0
        self._max_line_bytes = max_line_bytes
        self.number = self._blank = 0
        self._rest = bytearray()
        """The beginning of a line whose end has not arrived."""

    def feed(self, chunk: bytes) -> None:
        """Check the lines that the chunk completes.

        Raises:
            BadLineError: One of them cannot be used, or the line that it begins is too long.
        """
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            if self._rest:
                self._rest += part
                part = bytes(self._rest)
                self._rest.clear()
            self._check(part)
        self._rest += rest
        if len(self._rest) > self._max_line_bytes:
            raise self._bad_line(self.number + 1, self._too_long)

    def drop_rest(self) -> int:
        """Forget the beginning of a cut line, and return how many bytes to feed again."""
        size = len(self._rest)
        self._rest.clear()
        return size

    def finish(self) -> FileFormat:
        """Check the last line, and return the format.

        Raises:
            BadLineError: It cannot be used.
            InvalidRequestError: The file has no example.
        """
        if self._rest:
            self._check(bytes(self._rest))
            self._rest.clear()
        if self.format is None or not self.examples:
            raise InvalidRequestError("the file has no example: every line is blank", param="file", code="empty_file")
        return self.format

    @property
    def _too_long(self) -> str:
        return f"is longer than {self._max_line_bytes} bytes"

    def _bad_line(self, number: int, reason: str) -> BadLineError:
        expected = f": expected one JSON object with {ALL_EXPECTED[self.format]}" if self.format else ""
        return BadLineError(number, f"{reason}{expected}")

    def _check(self, raw: bytes) -> None:
        self.number += 1
        if not raw.strip():
            self._blank += 1
            if self._blank > MAX_BLANK_LINES:
                raise BadLineError(self.number, TOO_MANY_BLANK)
            return
        self._blank = 0
        if len(raw) > self._max_line_bytes:
            raise self._bad_line(self.number, self._too_long)
        line = self._decode(raw)
        if not isinstance(line, dict):
            raise self._bad_line(self.number, "is not a JSON object")
        try:
            if self.format is None:
                self.format = cast(FileFormat, detect_format(line, {}, tuple(ALL_EXPECTED)))
            else:
                check_record(line, self.format, {})
        except BadRecordError as error:
            raise BadLineError(self.number, str(error)) from None
        self.examples += 1

    def _decode(self, raw: bytes) -> Any:
        try:
            line = msgspec.json.decode(raw)
            # Each level has a bracket, so most lines need no closer look.
            if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
                check_plain_data(line, max_values=len(raw))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._bad_line(self.number, _reason(raw, error)) from None
        return line


def _reason(raw: bytes, error: Exception) -> str:
    """Return why a line cannot be decoded."""
    if isinstance(error, msgspec.ValidationError):
        return "has a number that is too large"
    if raw.startswith(_BYTE_ORDER_MARK):
        return "begins with a byte order mark; save the file as UTF-8 without one"
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in raw:
        return "is not UTF-8 text, but perhaps UTF-16 or a binary file"
    try:
        check_plain_data(json.loads(raw.decode()), max_values=len(raw))
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    except RecursionError:
        return f"is nested deeper than {MAX_DEPTH} levels"
    except json.JSONDecodeError as problem:
        return json_problem(problem)
    except ValueError as problem:
        return str(problem)
    return f"is not JSON: {error}"
