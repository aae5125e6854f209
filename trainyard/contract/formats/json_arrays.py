"""Finds the items in files that hold a JSON array instead of lines; the bytes arrive in parts."""

import re
from collections.abc import Iterator
from typing import NamedTuple

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SPACE = b" \t\r\n"
"""White space of JSON."""
NOT_CLOSED = "is the end of the file, and the array has no `]`"
AFTER_THE_END = "comes after the `]` that ends the array"
MISSING = "is missing: the array has a comma without an item"

# A whole string, the quote of a string that goes on in the next part, or a structural character.
_STRUCTURE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
_QUOTE = ord('"')
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


class ArrayScanner:
    """Finds the commas between the items of an array, and its end. It reads valid JSON exactly, and never fails on
    other bytes: an item with a fault in it is an item that cannot be parsed."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_string = self._is_escaped = False

    def ends(self, data: bytes) -> Iterator[int]:
        """Yield the positions of the commas after items and of the bracket that ends the array, in the next bytes."""
        start = self._after_string(data, 0) if self._is_string else 0
        for match in _STRUCTURE.finditer(data, start):
            position = match.start()
            sign = data[position]
            if sign == _QUOTE:
                # A lone quote: the string goes on in the next part.
                if match.end() == position + 1:
                    self._is_string = True
                    self._after_string(data, match.end())
                    return
            elif sign in b"[{":
                self._depth += 1
            elif self._depth:
                self._depth -= sign in b"]}"
            elif sign in b",]":
                yield position

    def _after_string(self, data: bytes, position: int) -> int:
        """Return the position after the string, or the end of the bytes if it goes on."""
        match = _REST_OF_STRING.match(data, position + self._is_escaped)
        assert match is not None, "the pattern matches no bytes too"
        end = match.end()
        self._is_string = data[end : end + 1] != b'"'
        self._is_escaped = data[end : end + 1] == b"\\" or (self._is_escaped and not data)
        return end + 1


class Item(NamedTuple):
    """An item of an array."""

    raw: bytes
    """Its text without the white space around it."""
    problem: str = ""
    """Why it cannot be read."""


class ArrayItems:
    """Cuts an array, from the byte after its `[` or after a comma, into items. At most one item is in memory.

    Attributes:
        unfinished: Bytes since the last item, which are to be fed again after `restart`.
    """

    def __init__(self, max_bytes: int, too_long: str, *, has_items: bool = False) -> None:
        """
        Args:
            max_bytes: Size of an item with the white space around it.
            too_long: The problem of a longer item.
            has_items: Whether items come before the first byte.
        """
        self._max_bytes = max_bytes
        self._too_long = too_long
        self._is_ended, self._has_items = False, has_items
        self._scanner = ArrayScanner()
        self._item = bytearray()
        self.unfinished = 0

    def restart(self) -> None:
        """Forget the beginning of an item that is not complete."""
        self._scanner = ArrayScanner()
        self._clear()

    @property
    def is_too_long(self) -> bool:
        """Whether the item that is not complete is too long already."""
        return self.unfinished > self._max_bytes

    def feed(self, data: bytes) -> Iterator[Item]:
        """Yield the items that the bytes complete."""
        start = 0
        if not self._is_ended:
            for end in self._scanner.ends(data):
                self._add(data[start:end])
                self._is_ended, start = data[end : end + 1] == b"]", end + 1
                is_empty = not self._item and not self.is_too_long
                if not (self._is_ended and is_empty and not self._has_items):
                    yield self._completed()
                self._has_items = True
                self._clear()
                if self._is_ended:
                    break
        self._add(data[start:])

    def finish(self) -> Iterator[Item]:
        """Yield an item with the problem at the end of the array."""
        if self._is_ended:
            if self._item:
                yield Item(b"", AFTER_THE_END)
        elif self.is_too_long:
            yield Item(b"", self._too_long)
        else:
            yield Item(b"", NOT_CLOSED)

    def _clear(self) -> None:
        self._item.clear()
        self.unfinished = 0

    def _add(self, data: bytes) -> None:
        self.unfinished += len(data)
        if self._is_ended:
            # Bytes after the end are checked, but never read as items.
            self._item = self._item or bytearray(data.strip(SPACE)[:1])
        elif self.is_too_long:
            self._item.clear()
        else:
            self._item += data if self._item else data.lstrip(SPACE)

    def _completed(self) -> Item:
        if self.is_too_long:
            return Item(b"", self._too_long)
        raw = bytes(self._item).rstrip(SPACE)
        return Item(raw, "" if raw else MISSING)


class ArrayDetector:
    """Decides from the beginning of a file whether it holds a single array. A first line that is a whole list, with
    other lines after it, is a line."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: a first line that is longer, and begins with `[`, is of an array."""
        self.is_array: bool | None = None
        """None: not decided yet."""
        self.head = bytearray()
        """The bytes until then."""
        self.start = 0
        """Position after the `[`, if the file is an array."""
        self._max_bytes = max_bytes
        self._scanner = ArrayScanner()
        self._is_closed = False

    def feed(self, data: bytes) -> None:
        """Read the next bytes until it is decided."""
        position = len(self.head)
        self.head += data
        if not self.start:
            position = self._begin()
        if self.start:
            self._decide(bytes(self.head[position:]))
        if self.is_array is None and len(self.head) > self._max_bytes:
            self.is_array = bool(self.start)

    def finish(self) -> None:
        """The file has no more bytes."""
        if self.is_array is None:
            self.is_array = bool(self.start)

    def _begin(self) -> int:
        """Look for the first byte other than white space, and return the position after it."""
        is_marked = self.head.startswith(BYTE_ORDER_MARK)
        rest = self.head[len(BYTE_ORDER_MARK) * is_marked :].lstrip(SPACE)
        if rest and not (BYTE_ORDER_MARK.startswith(rest) and not is_marked):
            self.is_array = None if rest[:1] == b"[" else False
            self.start = len(self.head) - len(rest) + 1 if self.is_array is None else 0
        return self.start

    def _decide(self, data: bytes) -> None:
        """Look at bytes after the `[`."""
        if not self._is_closed:
            newline = data.find(b"\n")
            for end in self._scanner.ends(data):
                if 0 <= newline < end:
                    break
                if data[end : end + 1] == b"]":
                    self._is_closed, data = True, data[end + 1 :]
                    break
            if not self._is_closed:
                self.is_array = True if newline >= 0 else None
                return
        if data.strip(SPACE):
            self.is_array = False
