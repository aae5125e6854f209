"""Records: the lines or rows of the parts of a file, whatever its kind."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.contract.formats.records import MAX_BLANK_LINES, TOO_MANY_BLANK, json_problem
from trainyard.contract.sizes import format_size
from worker.data.arrow_tables import table_chunks, table_rows
from worker.data.data_files import CHUNK_BYTES, Chunk, DataFile, opened

MAX_LINE_BYTES = 2**26
"""A longer line holds no example: its tokens alone would need gigabytes while it is read."""


BLANK = object()
"""Stands for a line without content."""


class Unreadable(str):
    """Stands for a record that cannot be read; its text is the reason."""

    __slots__ = ()


def chunks_of(file: DataFile) -> list[Chunk]:
    """Return the parts of a file, in their order.

    Raises:
        RefusedError: The file is not of its kind.
    """
    if file.kind != "jsonl":
        return table_chunks(file)
    size = file.state.size
    return [Chunk(file, start, min(start + CHUNK_BYTES, size)) for start in range(0, size, CHUNK_BYTES)]


def records_of(chunk: Chunk, columns: frozenset[str]) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each record: of lines, counted from 1 in the part, all that begin in it, with
    `BLANK` for one of white space; of rows, counted from 1 in the file, the values of `columns`.

    Raises:
        RefusedError: The file changed or is damaged.
    """
    return _lines(chunk) if chunk.file.kind == "jsonl" else table_rows(chunk, columns)


@dataclass(frozen=True)
class RecordPosition:
    """Where a record is."""

    file: DataFile
    number: int
    """From 1."""

    @property
    def unit(self) -> str:
        """What is counted."""
        return "line" if self.file.kind == "jsonl" else "row"

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
                yield number, Unreadable(f"is longer than {format_size(MAX_LINE_BYTES)}")
            elif blank == MAX_BLANK_LINES + 1:
                yield number, Unreadable(TOO_MANY_BLANK)
            else:
                yield number, BLANK if blank else _parsed(raw)


def _skip_line(handle: Any) -> None:
    while (part := handle.readline(2**20)) and not part.endswith(b"\n"):
        pass


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except UnicodeDecodeError as error:
        return Unreadable(f"is not JSON in UTF-8: byte {error.start + 1} is not valid")
    except json.JSONDecodeError as error:
        return Unreadable(json_problem(error))
    except ValueError:
        return Unreadable("is not JSON")
    except RecursionError:
        return Unreadable("is nested too deeply")
