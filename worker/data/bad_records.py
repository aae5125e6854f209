"""Bad records of a source: they are counted, the first are named, and they are skipped or end the run."""

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from trainyard.contract.formats.records import (
    DEFAULT_HINT,
    MAX_COUNTED,
    NAMED,
    ONE_RECORD,
    OTHER_TEXT,
    counted_text,
    problems_text,
)
from worker.core.errors import RefusedError
from worker.data.notices import Notice
from worker.data.records import RecordPosition

SKIP_HINT = "To leave bad lines out, set data.on_bad_line: skip."
_MAX_REASONS = 10
_MAX_DISTINCT = 1000
"""Different reasons that are counted."""
_REASON_CHARACTERS = 600
_POSITION = re.compile(r"(?<=\bmessage )\d+|(?<=\bcharacter )\d+|(?<=\bbyte )\d+|(?<=[a-z]\.)\d+(?=`)")
"""Numbers in problems that differ from record to record."""
_SECONDS = 10.0
"""Time for which records are counted after the first bad record that ends the run."""


@dataclass(frozen=True)
class NamedRecord:
    """A bad record, and the file and line, item or row where it is."""

    file: str
    unit: str
    number: int
    problem: str
    hint: str | None = None

    @classmethod
    def at(cls, position: RecordPosition, problem: str, hint: str | None) -> "NamedRecord":
        return cls(position.file.path, position.unit, position.number, problem, hint)

    @property
    def position(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"

    @property
    def text(self) -> str:
        """The position and the problem."""
        space = "" if self.problem.startswith(":") else " "
        return f"{self.position}{space}{self.problem}"


@dataclass
class BadRecordReasons:
    """Counts why records hold no example."""

    _counts: dict[str, list[Any]] = field(default_factory=dict)
    """For each problem: the number of records, the position of the first, and a hint."""

    def add(self, problem: str, position: str, hint: str | None = None) -> None:
        """Count a record. `position`: its file, and its line or row."""
        for text in (ONE_RECORD, OTHER_TEXT):
            # Stated for the first line alone, whose problem others may have too.
            if f" ({text})" in problem:
                problem, hint = problem.replace(f" ({text})", ""), f"{text[0].upper()}{text[1:]}."
        reason = _POSITION.sub("N", problem)[:_REASON_CHARACTERS]
        if reason in self._counts or len(self._counts) < _MAX_DISTINCT:
            self._counts.setdefault(reason, [0, position, hint or ""])[0] += 1

    def facts(self) -> list[dict[str, Any]]:
        """Return the most frequent problems as JSON data."""
        ordered = sorted(self._counts.items(), key=lambda item: -item[1][0])
        return [
            {"problem": problem, "records": count, "first": first, "hint": hint}
            for problem, (count, first, hint) in ordered[:_MAX_REASONS]
        ]


class BadRecords:
    """The bad records of a source.

    Attributes:
        count: The number of bad records.
        named: The first bad records.
        read: The number of records that were read, including bad records; the reader counts them.
    """

    def __init__(self, field: str, limit: int) -> None:
        """
        Args:
            field: The spec's field that names the files, for messages.
            limit: How many may be skipped. 0: none; further bad records are counted for a limited time.
        """
        self._field = field
        self._limit = limit
        self._end: float | None = None
        self.count = self.read = 0
        self.named: list[NamedRecord] = []
        self._reasons = BadRecordReasons()

    def facts(self) -> dict[str, Any]:
        """Return JSON data: how many `records` were read, how many are `bad`, the first as `named`, and `reasons`."""
        named = [asdict(record) for record in self.named]
        return {"records": self.read, "bad": self.count, "named": named, "reasons": self._reasons.facts()}

    @property
    def most(self) -> int:
        """The number of bad records after which reading can stop."""
        return self._limit or MAX_COUNTED

    def add(self, record: NamedRecord) -> None:
        """Count a bad record.

        Raises:
            RefusedError: Enough is known of them to end the run.
        """
        self.count += 1
        (named,) = _of_source(self._field, [record])
        self._reasons.add(named.problem, named.position, named.hint)
        if len(self.named) < NAMED:
            self.named.append(record)
        if self._end is None:
            self._end = time.monotonic() + _SECONDS
        if self.count > self.most:
            self._refuse(whole=False)

    def check_time(self) -> None:
        """Raise RefusedError if the run has to end and counting takes too long."""
        if not self._limit and self._end is not None and time.monotonic() > self._end:
            self._refuse(whole=False)

    def check(self, *, can_skip: bool = True) -> None:
        """Raise RefusedError if all records were read and more of them are bad than may be skipped.

        Args:
            can_skip: Whether the other records could be read if the bad records were skipped.
        """
        if self.count > self._limit or (self.count and not can_skip):
            self._refuse(whole=True, can_skip=can_skip)

    def notices(self) -> list[Notice]:
        """Return the notice about records that were skipped."""
        if not self.count:
            return []
        message = skipped_text(self._field, self.count, self.named)
        return [Notice("bad_lines_skipped", message, "warning", {"skipped": self.count})]

    def _refuse(self, *, whole: bool, can_skip: bool = True) -> None:
        limit = self._limit if can_skip else 0
        read = None if whole and not self.read else self.read
        raise too_many_bad(self._field, self.named, limit, self.count, read, whole=whole, can_skip=can_skip)


def too_many_bad(
    field: str,
    named: Sequence[NamedRecord],
    limit: int,
    count: int,
    read: int | None = None,
    *,
    whole: bool = True,
    can_skip: bool = True,
) -> RefusedError:
    """Return the error about bad records; `named` has at least one of them.

    Args:
        limit: How many may be skipped.
        count: The number of bad records among the `read` records.
        whole: Whether all records of the source were read.
        can_skip: Whether the other records could be read if the bad records were skipped.
    """
    named = _of_source(field, named)
    first = named[0]
    if not limit:
        hint = first.hint or DEFAULT_HINT
        counted = "" if count == 1 else f"{counted_text(count, read or count, first.unit, whole=whole)}: "
        message = f"{field}: {counted}{problems_text(_positions(named))}"
        return RefusedError(message, f"{hint} {SKIP_HINT}" if can_skip else hint)
    listed = "; ".join(record.text for record in named)
    more = f"more than {bad_lines_text(limit)} (data.max_bad_lines)"
    return RefusedError(f"{field}: {more}, the first of which are: {listed}", first.hint)


def _of_source(field: str, named: Sequence[NamedRecord]) -> list[NamedRecord]:
    """Return records whose hints name the fields of their own source, where the section has several."""
    parts = field.split(".")
    if parts[:2] == ["data", "sources"]:
        section = ".".join(parts[:3])
    elif parts[:2] == ["data", "eval_sets"]:
        section = field
    else:
        return list(named)

    def changed(text: str) -> str:
        return text.replace("data.format", f"{section}.format").replace("data.columns", f"{section}.columns")

    return [
        replace(record, problem=changed(record.problem), hint=changed(record.hint or DEFAULT_HINT)) for record in named
    ]


def _positions(named: Sequence[NamedRecord]) -> list[tuple[str, str]]:
    """Return the positions and the problems; a file is named where it begins."""
    rest = [
        (f"{record.unit} {record.number}" if record.file == before.file else record.position, record.problem)
        for before, record in pairwise(named)
    ]
    return [(named[0].position, named[0].problem), *rest]


def bad_lines_text(count: int) -> str:
    """Return a number of bad lines, for messages."""
    return f"{count} bad line{'' if count == 1 else 's'}"


def skipped_text(field: str, count: int, named: Sequence[NamedRecord]) -> str:
    """Return the notice about skipped bad records; it names the first."""
    listed = "; ".join(record.text for record in _of_source(field, named))
    more = f", and {count - len(named)} more" if count > len(named) else ""
    return f"{field}: {bad_lines_text(count)} {'was' if count == 1 else 'were'} skipped: {listed}{more}"
