"""Records: the lines, items or rows of the parts of a file, whatever its kind."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.contract.formats.json_arrays import ArrayItems, ArrayScanner, Item
from trainyard.contract.formats.records import MAX_BLANK_LINES, ONE_RECORD, TOO_MANY_BLANK, json_problem
from trainyard.contract.sizes import format_size
from worker.data.arrow_tables import table_chunks, table_rows
from worker.data.data_files import BLOCK_BYTES, CHUNK_BYTES, MAX_LINE_BYTES, Chunk, DataFile, array_start, opened

BLANK = object()
"""Stands for a line without content."""


class Unreadable(str):
    """Stands for a record that cannot be read; its text is the reason."""

    __slots__ = ()


def chunks_of(file: DataFile) -> Iterable[Chunk]:
    """Return the parts of a file, in order; an array is divided while the caller iterates.

    Raises:
        RefusedError: The file is not of its kind.
    """
    if file.kind == "array":
        return _array_chunks(file)
    if file.kind != "jsonl":
        return table_chunks(file)
    size = file.state.size
    return [Chunk(file, start, min(start + CHUNK_BYTES, size)) for start in range(0, size, CHUNK_BYTES)]


def records_of(chunk: Chunk, columns: frozenset[str]) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each record.

    Lines that begin in the part are numbered from 1 in it; a line of white space has the value `BLANK`. Items and rows
    are numbered from 1 in the file; a row has the values of `columns`.

    Raises:
        RefusedError: The file changed or is damaged.
    """
    if chunk.file.kind == "array":
        return _items(chunk)
    return _lines(chunk) if chunk.file.kind == "jsonl" else table_rows(chunk, columns)


@dataclass(frozen=True)
class RecordPosition:
    """The position of a record."""

    file: DataFile
    number: int
    """The number of the line, item or row, from 1."""

    @property
    def unit(self) -> str:
        """The unit that numbers count."""
        return {"jsonl": "line", "array": "item"}.get(self.file.kind, "row")

    def __str__(self) -> str:
        return f"{self.file.path}, {self.unit} {self.number}"


def numbered_records(files: Sequence[DataFile], columns: frozenset[str]) -> Iterator[tuple[RecordPosition, Any]]:
    """Yield all records of the files that are not blank, with their places; see `records_of`."""
    for file in files:
        lines = 0
        for chunk in chunks_of(file):
            number = 0
            for number, record in records_of(chunk, columns):
                if record is not BLANK:
                    yield RecordPosition(file, number + lines), record
            lines += number if file.kind == "jsonl" else 0


def _lines(chunk: Chunk) -> Iterator[tuple[int, Any]]:
    with opened(chunk.file) as handle:
        if chunk.start:
            handle.seek(chunk.start - 1)
            _skip_line(handle)
        number = blank = 0
        while handle.tell() < chunk.stop:
            raw = handle.readline(MAX_LINE_BYTES + 1)
            number += 1
            blank = 0 if raw.strip() else blank + 1
            if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
                _skip_line(handle)
                # Perhaps a single object holds all records.
                hint = f" ({ONE_RECORD})" if number == 1 and not chunk.start and raw.lstrip().startswith(b"{") else ""
                yield number, Unreadable(f"{_too_long()}{hint}")
            elif blank == MAX_BLANK_LINES + 1:
                yield number, Unreadable(TOO_MANY_BLANK)
            else:
                yield number, BLANK if blank else _parsed(raw, is_first=number == 1 and not chunk.start)


def _too_long() -> str:
    return f"is longer than {format_size(MAX_LINE_BYTES)}"


def _array_chunks(file: DataFile) -> Iterator[Chunk]:
    """Yield parts that begin after the bracket or a comma. The text after the last comma is in the last part."""
    size, scanner = file.state.size, ArrayScanner()
    with opened(file) as handle:
        start = array_start(handle) or 0
        first_item = items = 0
        position = handle.seek(start)
        while block := handle.read(BLOCK_BYTES):
            for end in scanner.ends(block):
                if block[end : end + 1] == b"]":
                    yield Chunk(file, start, size, first_item)
                    return
                items += 1
                if (stop := position + end + 1) - start >= CHUNK_BYTES:
                    yield Chunk(file, start, stop, first_item)
                    start, first_item = stop, items
            position += len(block)
    yield Chunk(file, start, size, first_item)


def _items(chunk: Chunk) -> Iterator[tuple[int, Any]]:
    items = ArrayItems(MAX_LINE_BYTES, _too_long(), has_items=chunk.first_row > 0)
    number = chunk.first_row
    with opened(chunk.file) as handle:
        handle.seek(chunk.start)
        remaining = chunk.stop - chunk.start
        while block := handle.read(min(BLOCK_BYTES, remaining)):
            remaining -= len(block)
            for item in items.feed(block):
                number += 1
                yield number, _parsed_item(item)
    if chunk.stop == chunk.file.state.size:
        for item in items.finish():
            number += 1
            yield number, _parsed_item(item)


def _parsed_item(item: Item) -> Any:
    if item.problem:
        return Unreadable(item.problem)
    try:
        text = item.raw.decode()
    except UnicodeDecodeError as error:
        return Unreadable(f"is not JSON in UTF-8: byte {error.start + 1} is not valid")
    return _parsed(text)


def _skip_line(handle: Any) -> None:
    while (part := handle.readline(2**20)) and not part.endswith(b"\n"):
        pass


def _parsed(raw: bytes | str, *, is_first: bool = False) -> Any:
    try:
        return json.loads(raw)
    except UnicodeDecodeError as error:
        return Unreadable(f"is not JSON in UTF-8: byte {error.start + 1} is not valid")
    except json.JSONDecodeError as error:
        return Unreadable(json_problem(error, is_first=is_first))
    except ValueError:
        return Unreadable("is not JSON")
    except RecursionError:
        return Unreadable("is nested too deeply")
