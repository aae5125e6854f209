"""The files in which torchrun records how the ranks of a node ended. Imports next to nothing, since torchrun waits for
it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.contract.layout import AttemptLayout


@dataclass(frozen=True)
class RankExit:
    """The end of a rank's process, as torchrun saw it."""

    rank: int
    exitcode: int
    """The exit code; negative: the number of the signal that ended the process."""
    pid: int
    time: float
    """When torchrun noticed the end, in whole seconds since 1970."""
    out_of_memory: bool = False
    """Whether the kernel counted an out-of-memory kill in the job's cgroup."""
    message: str = ""
    """The error that the program left in torchrun's error file (`@record`)."""
    traceback: str = ""
    hook: Mapping[str, Any] = field(default_factory=dict)
    """The record of our hook in the program's Python: `exception`, or `exit` with the text of `sys.exit(text)`, null
    without a text. Empty: the hook did not run, or the process ended at once."""
    command: Sequence[str] = ()
    """The arguments of the rank's program, whose wrappers give exit codes a meaning."""
    signature: str = ""
    """Text that two ends share if they are the same; empty for a signal. See `script_failures.signature_of`."""


def rank_exits_file(layout: AttemptLayout, node: int, execution: int) -> Path:
    """Return the file of a node and execution."""
    return layout.errors / f"torchrun-{execution}-{node}.json"


def read_rank_exits(layout: AttemptLayout, execution: int) -> list[RankExit]:
    """Return the ranks of all nodes that failed in an execution, by rank. Unreadable files are skipped."""
    exits = [
        rank_exit
        for path in sorted(layout.errors.glob(f"torchrun-{execution}-*.json"))
        for rank_exit in _read_file(path)
    ]
    return sorted(exits, key=lambda rank_exit: rank_exit.rank)


def _read_file(path: Path) -> list[RankExit]:
    try:
        return [
            RankExit(
                int(item["rank"]),
                int(item["exitcode"]),
                int(item["pid"]),
                float(item["time"]),
                bool(item.get("out_of_memory")),
                str(item.get("message", "")),
                str(item.get("traceback", "")),
                dict(item.get("hook") or {}),
                tuple(map(str, item.get("command") or ())),
                str(item.get("signature", "")),
            )
            for item in json.loads(path.read_text())
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
