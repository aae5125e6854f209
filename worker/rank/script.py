"""A rank of a `script` job becomes the user's program: the same process, the same log, and nothing of ours in it."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.user_code import runs_uploaded_file
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import EventsBatch, WorkerEvent
from trainyard.contract.wire.spool import format_record
from trainyard.progress_file import interval
from trainyard.script import BEATS, FOLDER
from worker.launcher.exit_record import restart_after


def become(layout: AttemptLayout, launch: LaunchDocument, execution: int) -> NoReturn:
    """Run the spec's program in this process's place."""
    if os.environ["RANK"] == "0" and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        tell_of_restart(layout, launch, execution)
    folder = layout.code if launch.spec.code else layout.root
    os.chdir(folder)
    # Slurm signals every process of a job that is to end: the program is asked by `should_stop`, and not killed.
    # SIGUSR1 asks for stacks, which `trainyard.script` writes once it is in use.
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    words = command(launch.spec.argv or (), folder)
    os.execve(words[0], words, environment(os.environ, layout, launch.spec.health.stall_timeout_minutes))  # noqa: S606 (no shell on the way)


def tell_of_restart(layout: AttemptLayout, launch: LaunchDocument, execution: int) -> None:
    """The execution's first record: the program itself knows nothing of what came before it."""
    message, data = restart_after(layout, execution, launch.spec)
    event = WorkerEvent(
        sequence=0, type="restarted_in_place", level="warning", message=message, data=data, time=datetime.now(UTC)
    )
    record = format_record(0, "events", EventsBatch(execution=execution, events=(event,)))
    layout.spool_file(execution).write_bytes(record)


def command(argv: Sequence[str], folder: Path) -> list[str]:
    """The program's words, as Python would be called by hand."""
    first = str(folder / argv[0]) if runs_uploaded_file(argv) else argv[0]
    return [sys.executable, first, *argv[1:]]


def environment(base: Mapping[str, str], layout: AttemptLayout, stall_minutes: float | None) -> dict[str, str]:
    """The rank's own, with what `trainyard.script` needs. The program sees its own folder, as usual for Python."""
    kept = {name: value for name, value in base.items() if name != "PYTHONSAFEPATH"}
    watched = {} if stall_minutes is None else {BEATS: str(interval(stall_minutes * 60.0))}
    return {**kept, **watched, FOLDER: str(layout.root), "PYTHONUNBUFFERED": "1"}
