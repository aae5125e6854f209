"""Checks a data file while it arrives, in chunks of any size."""

import json
from typing import Any, cast

import msgspec

from service.core.errors import InvalidRequestError
from trainyard.contract.bounds import MAX_DEPTH, check_plain_data
from trainyard.contract.data_files import MAX_LINE_BYTES
from trainyard.contract.formats.detection import ALL_EXPECTED, check_record, check_unambiguous, detect_format
from trainyard.contract.formats.json_arrays import BYTE_ORDER_MARK, ArrayDetector, ArrayItems
from trainyard.contract.formats.records import (
    EXPECTED_OBJECT,
    MAX_BLANK_LINES,
    MAX_COUNTED,
    NAMED,
    ONE_RECORD,
    TOO_MANY_BLANK,
    BadRecordError,
    counted_text,
    json_problem,
    problems_text,
)
from trainyard.contract.wire.data_files import FileFormat

_SETTING = "the `format` of the upload"
_READ_ON_BYTES = 16 * 1024 * 1024
"""How much is checked after the first bad line, to count the others."""


class BadLineError(InvalidRequestError):
    """Lines of a data file cannot be used; the message has the numbers of the first bad lines and the reasons."""

    code = "invalid_line"

    def __init__(self, number: int, message: str):
        """`number`: of the first bad line, or item."""
        super().__init__(message, param="file")
        self.line = number


class LineChecker:
    """Finds the format of a file and its bad lines, with at most one line in memory. The items of a JSON array count as
    lines.

    Attributes:
        format: The format; None before the first line.
        examples: Number of lines that can be used.
        bad: Number of lines that cannot be used.
        number: Number of lines that were checked, blank lines included.
    """

    def __init__(self, format: FileFormat | None = None, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.format = format
        self.examples = self.bad = 0
        self._is_stated = format is not None
        self._max_line_bytes = max_line_bytes
        self.number = self._blank = 0
        self._detector: ArrayDetector | None = ArrayDetector(max_line_bytes)
        self._items: ArrayItems | None = None
        self._rest = bytearray()
        """The beginning of a line whose end has not arrived."""
        self._named: list[tuple[int, str]] = []
        self._read_on = 0

    def feed(self, chunk: bytes) -> None:
        """Check the lines that the chunk completes.

        Raises:
            BadLineError: Lines cannot be used, and others are not checked any more, or the line that the chunk begins
                is too long.
        """
        self._read_on += len(chunk) if self.bad else 0
        if self._read_on > _READ_ON_BYTES:
            raise self._error(whole=False)
        if self._detector is not None:
            self._detector.feed(chunk)
            self._begin()
        else:
            self._feed(chunk)

    def _begin(self) -> None:
        """Check the beginning of the file when it shows whether it is an array."""
        detector = self._detector
        if detector is None or detector.is_array is None:
            return
        self._detector = None
        if detector.is_array:
            self._items = ArrayItems(self._max_line_bytes, self._too_long)
        head = bytes(detector.head)
        self._feed(head[detector.start :] if detector.is_array else head.removeprefix(BYTE_ORDER_MARK))

    def _feed(self, data: bytes) -> None:
        if self._items is not None:
            for item in self._items.feed(data):
                self._check(item.raw, item.problem)
            is_too_long = self._items.is_too_long
        else:
            *complete, rest = data.split(b"\n")
            for part in complete:
                if self._rest:
                    self._rest += part
                    part = bytes(self._rest)
                    self._rest.clear()
                self._check(part)
            self._rest += rest
            is_too_long = len(self._rest) > self._max_line_bytes
        if is_too_long:
            self._reject(self.number + 1, self._problem(self._too_long))
            raise self._error(whole=False)

    def drop_rest(self) -> int:
        """Forget the beginning of a cut line, and return how many bytes to feed again."""
        if self._detector is not None:
            size = len(self._detector.head)
            self._detector = ArrayDetector(self._max_line_bytes)
        elif self._items is not None:
            size = self._items.unfinished
            self._items.restart()
        else:
            size = len(self._rest)
            self._rest.clear()
        return size

    def finish(self) -> FileFormat:
        """Check the last line, and return the format.

        Raises:
            BadLineError: Lines cannot be used.
            InvalidRequestError: The file has no example.
        """
        if self._detector is not None:
            self._detector.finish()
            self._begin()
        if self._items is not None:
            for item in self._items.finish():
                self._check(item.raw, item.problem)
        elif self._rest:
            self._check(bytes(self._rest))
            self._rest.clear()
        if self.bad:
            raise self._error(whole=True)
        if self.format is None or not self.examples:
            reason = "every line is blank" if self._items is None else "the array is empty"
            raise InvalidRequestError(f"the file has no example: {reason}", param="file", code="empty_file")
        return self.format

    def refuse_bad(self) -> None:
        """Raise BadLineError if lines that were checked cannot be used."""
        if self.bad:
            raise self._error(whole=False)

    def _error(self, *, whole: bool) -> BadLineError:
        unit = "line" if self._items is None else "item"
        text = problems_text([(f"{unit} {number}", reason) for number, reason in self._named])
        if self.bad > 1:
            text = f"{counted_text(self.bad, self.examples + self.bad, unit, whole=whole)}: {text}"
        return BadLineError(self._named[0][0], text)

    @property
    def _too_long(self) -> str:
        return f"is longer than {self._max_line_bytes} bytes"

    def _problem(self, reason: str) -> str:
        # A file without any line may have all records in one object.
        remedy = f" ({ONE_RECORD})" if reason == self._too_long and not self.number and self._rest[:1] == b"{" else ""
        return f"{reason}{remedy}{EXPECTED_OBJECT}{ALL_EXPECTED[self.format]}" if self.format else f"{reason}{remedy}"

    def _reject(self, number: int, reason: str) -> None:
        self.bad += 1
        if len(self._named) < NAMED:
            self._named.append((number, reason))
        if self.bad > MAX_COUNTED:
            raise self._error(whole=False)

    def _check(self, raw: bytes, problem: str = "") -> None:
        """Check a line or an item; `problem`: why it cannot be read."""
        self.number += 1
        try:
            if problem or raw.strip():
                self._blank = 0
                self._check_record(raw, problem)
                self.examples += 1
                return
        except BadRecordError as error:
            self._reject(self.number, str(error))
            return
        self._blank += 1
        if self._blank == MAX_BLANK_LINES + 1:
            self._reject(self.number, TOO_MANY_BLANK)

    def _check_record(self, raw: bytes, problem: str) -> None:
        """Raise BadRecordError unless a line can be used."""
        if problem or len(raw) > self._max_line_bytes:
            raise BadRecordError(self._problem(problem or self._too_long))
        record = self._decode(raw)
        if not isinstance(record, dict):
            raise BadRecordError(self._problem("is not a JSON object"))
        formats = tuple(ALL_EXPECTED)
        if self.format is None:
            self.format = cast(FileFormat, detect_format(record, {}, formats, setting=_SETTING))
            return
        if not self._is_stated:
            check_unambiguous(record, self.format, {}, formats, setting=_SETTING)
        check_record(record, self.format, {})

    def _decode(self, raw: bytes) -> Any:
        try:
            line = msgspec.json.decode(raw)
            # Each level has a bracket, so most lines need no closer look.
            if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
                check_plain_data(line, max_values=len(raw))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BadRecordError(
                self._problem(_reason(raw, error, is_first=self.number == 1 and self._items is None))
            ) from None
        return line


def _reason(raw: bytes, error: Exception, *, is_first: bool) -> str:
    """Return why a line cannot be decoded."""
    if isinstance(error, msgspec.ValidationError):
        return "has a number that is too large"
    if raw.startswith(BYTE_ORDER_MARK):
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
        return json_problem(problem, is_first=is_first)
    except ValueError as problem:
        return str(problem)
    return f"is not JSON: {error}"
