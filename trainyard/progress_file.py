"""A rank's progress: counted in memory by the training thread, written to a file by another thread.

Imports no torch, since the launcher reads the files. A mark costs the training thread three assignments. The writer is
in `trainyard.script`, which imports nothing of ours.
"""

import contextlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trainyard.script import ProgressCounter, ProgressWriter, location

__all__ = ["ProgressCounter", "ProgressRecord", "ProgressWriter", "interval", "location", "read_progress"]


WRITES_PER_TIMEOUT = 20
"""Writes within a stall timeout, at intervals between the two limits below."""
MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 0.1, 2.0


class ProgressRecord(BaseModel):
    """`progress/rank-<r>.json`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int
    execution: int
    marks: int
    """Marks since the start of the execution."""
    position: tuple[int, int] = (0, 0)
    """The step, and the marks in it, which every rank makes in the same order; for a program zero and the step
    boundaries. Before the first step, when the ranks do different work, and in a program without boundaries: zeros."""
    step: int
    """The step that the rank works on."""
    phase: str
    """`starting`, `forward`, `backward`, `update`, `between`, `evaluating`, `saving`, `exporting`, `ending`, or another
    phase that a callback names, such as `sampling`."""
    where: str = ""
    """The innermost line of code outside torch that the training thread executes."""
    in_torch: bool = False
    """Whether that line called torch, and so may wait for other ranks."""
    compiling: bool = False
    """Whether `torch.compile` compiles in the training thread."""
    loading: bool = False
    """Whether the training thread waits in torch's DataLoader."""
    host: str = ""
    """The node, by its name in the scheduler if any."""
    pid: int = 0


def interval(timeout_seconds: float) -> float:
    """Return the seconds between two writes for a stall timeout."""
    return min(MAX_INTERVAL_SECONDS, max(MIN_INTERVAL_SECONDS, timeout_seconds / WRITES_PER_TIMEOUT))


def read_progress(folder: Path, execution: int) -> dict[int, ProgressRecord]:
    """Return the readable records of an execution, by rank. Records of earlier executions are ignored."""
    records = {}
    for path in folder.glob("rank-*.json"):
        with contextlib.suppress(OSError, ValueError):
            record = ProgressRecord.model_validate_json(path.read_bytes())
            if record.execution == execution:
                records[record.rank] = record
    return records
