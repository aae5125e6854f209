"""The results of `bench.gpu`: one JSON line for each case, and a Markdown table of all."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["passed", "missed", "failed", "measured", "started"]
"""`measured`: the case has no target. `failed`: it raised an error. `started`: it has no result, because it ended the
process or took too long."""


@dataclass(frozen=True)
class Record:
    """The result of one case."""

    phase: str
    case: str
    verdict: Verdict
    values: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    """The target, or the error."""
    seconds: float = 0.0
    sources: str = ""
    """A digest of the programs that were measured."""


class ResultFile:
    """A file of JSON lines: the machine in the first line, then the records."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self, machine: Mapping[str, Any]) -> None:
        """Write the first line, unless the file continues results of the same machine and program.

        Raises:
            SystemExit: The file has results of another one.
        """
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps({"machine": dict(machine)}) + "\n")
        elif (before := self.machine()) != dict(machine):
            differing = sorted(key for key in {*before, *machine} if before.get(key) != machine.get(key))
            raise SystemExit(f"{self.path} has results with another {', '.join(differing)}; choose another --output")

    def append(self, record: Record) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    def machine(self) -> dict[str, Any]:
        machine: dict[str, Any] = self._lines()[0]["machine"]
        return machine

    def records(self, sources: str | None = None) -> list[Record]:
        """Return the last record of each case; with `sources` of these programs alone."""
        records = [Record(**line) for line in self._lines()[1:]]
        records = [record for record in records if sources in (None, record.sources)]
        return list({(record.phase, record.case): record for record in records}.values())

    def __len__(self) -> int:
        return len(self._lines())

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def markdown_table(machine: Mapping[str, Any], records: Iterable[Record]) -> str:
    """Return a page with the machine and a row for each case."""
    lines = [f"{key}: {value}  " for key, value in machine.items()]
    lines += ["", "| phase | case | result | values | note |", "|---|---|---|---|---|"]
    for record in records:
        values = ", ".join(f"{name} {_format(value)}" for name, value in record.values.items())
        note = record.note.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {record.phase} | {record.case} | {record.verdict} | {values} | {note} |")
    return "\n".join(lines) + "\n"


def _format(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
