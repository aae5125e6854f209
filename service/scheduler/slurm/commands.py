"""Slurm's commands: run with a time limit and a clean environment, and their output as rows."""

import os
import secrets
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from service.scheduler.base import SchedulerUnavailableError
from service.scheduler.slurm.accounting_rules import COLUMNS
from service.scheduler.slurm.sinfo import SHORT, WIDE, parse_short, parse_wide, snapshot
from trainyard.contract.wire.cluster import ClusterSnapshot

_SECONDS = 20.0
"""Slurm's own commands give up after ten by default."""
_NO_ACCOUNTING = "accounting storage is disabled"
_UNKNOWN_COLUMN = "invalid"
_SEPARATOR = "|"

CommandCounter = Callable[[str, Literal["ok", "failed", "timeout"]], None]
"""Told of every command: its name, and how it went."""


def ignore(_command: str, _outcome: str) -> None:
    """Nobody counts."""


@dataclass(frozen=True)
class Row:
    """One job as squeue or sacct shows it."""

    id: str
    name: str
    state: str
    detail: str
    """squeue: why it waits; sacct: its exit code."""
    nodes: str
    partition: str = ""
    priority: int = 0
    estimated_start: datetime | None = None


@dataclass
class SlurmCommands:
    """Those that look or cancel; submission is a process of its own."""

    count: CommandCounter = ignore
    _tells_used_gpus: bool = True
    """Until `sinfo` has refused that column."""

    def squeue(self, *, everyone: bool = False) -> tuple[list[Row], list[Row]]:
        """Every job of this account that the controller knows, ended ones included until it forgets them; and those
        of others, which are asked for only on request.

        One question for all: asked by account and not by id, its cost does not grow with the jobs that we follow, and
        an id that the controller has forgotten is no error.
        """
        # Any account may give its jobs any name, line breaks included; none can know what a true line begins with.
        mark = secrets.token_hex(8)
        columns = f"--format={mark}|%i|%T|%S|%P|%Q|%U|%N|%r|%j"
        whose = [] if everyone else [f"--user={os.getuid()}", "--array"]
        output = self._run(["squeue", *whose, "--states=all", "--noheader", columns])
        return read_queue(output, mark, os.getuid())

    def sacct(self, *, ids: Sequence[str] = (), names: Sequence[str] = ()) -> list[Row] | None:
        """What the accounting knows of these ids or of these names, older records first; None where there is none."""
        # By name within a window, whose end lies ahead: what is not to begin before then would not be shown.
        window = ["--starttime=now-30days", "--endtime=now+30days"]
        what = [f"--jobs={','.join(ids)}"] if ids else [f"--name={','.join(names)}", *window]
        columns = "--format=JobIDRaw,State,ExitCode,NodeList,JobName"
        try:
            return _records(
                self._run(["sacct", "--allocations", "--duplicates", "--noheader", "--parsable2", columns, *what])
            )
        except SchedulerUnavailableError as error:
            if _NO_ACCOUNTING in str(error):
                return None
            raise

    def sinfo(self) -> ClusterSnapshot:
        """Partitions and nodes: one question, whatever their number."""
        common = ["sinfo", "--all", "--Node", "--noheader"]
        if not self._tells_used_gpus:
            return snapshot(parse_short(self._run([*common, SHORT])))
        try:
            return snapshot(parse_wide(self._run([*common, WIDE])))
        except SchedulerUnavailableError as error:
            # An old release: the next question is put so that it understands.
            self._tells_used_gpus = not (_UNKNOWN_COLUMN in str(error).lower() and "format" in str(error).lower())
            raise

    def configuration(self) -> str:
        """The controller's own configuration, as it prints it."""
        return self._run(["scontrol", "show", "config"])

    def associations(self, user: str) -> str:
        """What the accounting allows a user: one line for each association, with `accounting_rules.COLUMNS`."""
        what = ["show", "user", "where", f"name={user}", "withassoc"]
        return self._run(["sacctmgr", "--noheader", "--parsable2", *what, f"format={','.join(COLUMNS)}"])

    def scancel(self, job: str, name: str) -> None:
        """Cancel the job if it has this name: Slurm itself compares, so a reused id is never hit."""
        self._run(["scancel", f"--name={name}", job])

    def test_only(self, script: str) -> tuple[int, str]:
        """sbatch's exit status and words about a script that it does not queue."""
        done = self._call(["sbatch", "--test-only"], script.encode())
        # A refusal is an answer too.
        self.count("sbatch", "ok")
        return done.returncode, done.stderr.decode(errors="replace")

    def _run(self, command: list[str]) -> str:
        done = self._call(command)
        self.count(command[0], "failed" if done.returncode else "ok")
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()
            raise SchedulerUnavailableError(f"{command[0]} ended with {done.returncode}: {words}")
        return done.stdout.decode(errors="replace")

    def _call(self, command: list[str], text: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        try:
            return subprocess.run(
                command,
                # Times without a zone, and local ones twice a year ambiguous, are what the commands print.
                env=clean_environment() | {"TZ": "UTC0"},
                input=text,
                capture_output=True,
                timeout=_SECONDS,
                start_new_session=True,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self.count(command[0], "timeout" if isinstance(error, subprocess.TimeoutExpired) else "failed")
            raise SchedulerUnavailableError(f"{command[0]}: {error}") from None


def clean_environment() -> dict[str, str]:
    """Without the variables by which an account can change what the commands print."""
    kept = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_JWT", "TZ")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C"}


def read_queue(output: str, mark: str, uid: int) -> tuple[list[Row], list[Row]]:
    """squeue's lines as this account's jobs and the jobs of others. Pure."""
    mine, others = [], []
    for line in output.splitlines():
        cells = line.split(_SEPARATOR, 9)
        if len(cells) != 10 or cells[0] != mark:
            continue
        _, number, state, start, partition, priority, owner, nodes, reason, name = cells
        rank = int(priority) if priority.isdigit() else 0
        row = Row(number, name, state, reason, nodes, partition, rank, _time(start))
        if owner != str(uid):
            others.append(row)
        elif number.isdigit():
            mine.append(row)
    return mine, others


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


def _records(output: str) -> list[Row]:
    """The name is last: another program's job may have any name, and is not ours."""
    found = []
    for line in output.splitlines():
        fields = line.split(_SEPARATOR, 4)
        if len(fields) == 5 and fields[0].isdigit():
            found.append(Row(fields[0], fields[4], fields[1], fields[2], fields[3]))
    return found
