"""The parameters, tags and notes that the program of a job reported. Pure functions on the column `jobs.parameters`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from trainyard.contract.base import HIDDEN_CHARACTERS, MAX_DISPLAY_NAME
from trainyard.contract.parameter_text import Scalar
from trainyard.contract.wire.reports import MAX_PARAMETER_CHARS, MAX_PARAMETER_TEXT, MAX_PARAMETERS, ParametersReport
from trainyard.contract.wire.views import MAX_NOTES

Entry = tuple[int, Any]
"""The execution that reported a value, and the value as JSON."""

RUN_TAG, PROJECT_TAG = "run", "project"
"""The tags in which trackers report the names of the run and of its project."""
MAX_LISTED = 64
MAX_LISTED_TEXT = 200


@dataclass(frozen=True)
class Shown:
    """The values without the executions."""

    parameters: dict[str, Scalar]
    tags: dict[str, str]
    notes: str | None


@dataclass(frozen=True)
class Reported:
    """All that the executions of a job reported, by name."""

    parameters: dict[str, Entry] = field(default_factory=dict)
    tags: dict[str, Entry] = field(default_factory=dict)
    notes: Entry | None = None

    @classmethod
    def from_json(cls, column: Mapping[str, Any] | None) -> "Reported":
        column = column or {}
        notes = column.get("notes")
        return cls(
            {name: (entry[0], entry[1]) for name, entry in column.get("parameters", {}).items()},
            {name: (entry[0], entry[1]) for name, entry in column.get("tags", {}).items()},
            None if notes is None else (notes[0], notes[1]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "parameters": {name: list(entry) for name, entry in self.parameters.items()},
            "tags": {name: list(entry) for name, entry in self.tags.items()},
            "notes": None if self.notes is None else list(self.notes),
        }

    def shown(self, *, in_list: bool = False) -> Shown:
        """Return the values; in a list of jobs `MAX_LISTED` of each kind, and texts cut to `MAX_LISTED_TEXT`."""
        count, length = (MAX_LISTED, MAX_LISTED_TEXT) if in_list else (MAX_PARAMETERS, MAX_PARAMETER_TEXT)
        notes_length = MAX_LISTED_TEXT if in_list else MAX_NOTES

        def cut(entries: Mapping[str, Entry]) -> dict[str, Any]:
            first = islice(entries.items(), count)
            return {name: value[:length] if isinstance(value, str) else value for name, (_, value) in first}

        return Shown(cut(self.parameters), cut(self.tags), self.notes[1][:notes_length] or None if self.notes else None)


@dataclass(frozen=True)
class ProgramNames:
    """How a program calls itself to its tracker, as names of jobs may be."""

    name: str | None
    project: str | None

    @classmethod
    def first_reported(cls, before: Reported, after: Reported) -> "ProgramNames":
        """Return the names that a report contains for the first time."""

        def new(tag: str) -> str | None:
            return None if tag in before.tags or tag not in after.tags else _as_display_name(str(after.tags[tag][1]))

        return cls(new(RUN_TAG), new(PROJECT_TAG))


def _as_display_name(text: str) -> str | None:
    """Return a text without characters that names of jobs cannot have, cut to their length; None if none is left."""
    return re.sub(HIDDEN_CHARACTERS, "", text).strip()[:MAX_DISPLAY_NAME].strip() or None


def merge(reported: Reported, report: ParametersReport) -> tuple[Reported, int]:
    """Return the values merged with a report's values, and the number of values that are dropped.

    Dropped are new names beyond `MAX_PARAMETERS`, and values beyond `MAX_PARAMETER_CHARS`. Values of a later execution
    stay.
    """
    body = report.model_dump(mode="json")
    parameters, dropped = _merge_entries(reported.parameters, body["parameters"], report.execution)
    removed = set(report.removed_tags)
    present_tags = {
        name: tag for name, tag in reported.tags.items() if name not in removed or tag[0] > report.execution
    }
    tags, dropped_tags = _merge_entries(present_tags, body["tags"], report.execution)
    notes = reported.notes
    if report.notes is not None and (notes is None or notes[0] <= report.execution):
        notes = (report.execution, report.notes)
    return Reported(parameters, tags, notes), dropped + dropped_tags


def _merge_entries(
    entries: Mapping[str, Entry], values: Mapping[str, Any], execution: int
) -> tuple[dict[str, Entry], int]:
    merged, dropped = dict(entries), 0
    size = sum(_size(name, value) for name, (_, value) in merged.items())
    for name, value in values.items():
        present = merged.get(name)
        if present is not None and present[0] > execution:
            continue
        added = _size(name, value) - (0 if present is None else _size(name, present[1]))
        is_full = present is None and len(merged) >= MAX_PARAMETERS
        if is_full or (added > 0 and size + added > MAX_PARAMETER_CHARS):
            dropped += 1
            continue
        merged[name] = (execution, value)
        size += added
    return merged, dropped


def _size(name: str, value: Any) -> int:
    return len(name) + len(str(value))
