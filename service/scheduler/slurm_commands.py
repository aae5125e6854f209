"""Slurm's commands: run with a time limit and a clean environment, and their output as rows."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from service.scheduler.base import SchedulerUnavailableError

_SECONDS = 20.0
"""Slurm's own commands give up after ten by default."""
_NO_ACCOUNTING = "accounting storage is disabled"
_SEPARATOR = "|"


@dataclass(frozen=True)
class Row:
    """One job as squeue or sacct shows it."""

    id: str
    name: str
    state: str
    detail: str
    """squeue: why it waits; sacct: its exit code."""
    nodes: str


def squeue() -> list[Row]:
    """Every job of this account that the controller knows, ended ones included until it forgets them.

    One question for all: asked by account and not by id, its cost does not grow with the jobs that we follow, and an
    id that the controller has forgotten is no error.
    """
    columns = "%i|%T|%r|%N|%j"
    return _rows(
        _run(["squeue", f"--user={os.getuid()}", "--states=all", "--noheader", "--array", f"--format={columns}"])
    )


def sacct(*, ids: Sequence[str] = (), name: str = "") -> list[Row] | None:
    """What the accounting knows of these ids or of this name, older records first; None where there is none."""
    # By name within a window, whose end lies ahead: what is not to begin before then would not be shown.
    window = ["--starttime=now-30days", "--endtime=now+30days"]
    what = [f"--jobs={','.join(ids)}"] if ids else [f"--name={name}", *window]
    columns = "--format=JobIDRaw,State,ExitCode,NodeList,JobName"
    try:
        return _rows(_run(["sacct", "--allocations", "--duplicates", "--noheader", "--parsable2", columns, *what]))
    except SchedulerUnavailableError as error:
        if _NO_ACCOUNTING in str(error):
            return None
        raise


def scancel(job: str, name: str) -> None:
    """Cancel the job if it has this name: Slurm itself compares, so a reused id is never hit."""
    _run(["scancel", f"--name={name}", job])


def clean_environment() -> dict[str, str]:
    """Without the variables by which an account can change what the commands print."""
    kept = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_JWT", "TZ")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C"}


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SchedulerUnavailableError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip()
        raise SchedulerUnavailableError(f"{command[0]} ended with {done.returncode}: {words}")
    return done.stdout.decode(errors="replace")


def _rows(output: str) -> list[Row]:
    """The name is last: another program's job may have any name, and is not ours."""
    found = []
    for line in output.splitlines():
        fields = line.split(_SEPARATOR, 4)
        if len(fields) == 5 and fields[0].isdigit():
            found.append(Row(fields[0], fields[4], fields[1], fields[2], fields[3]))
    return found
