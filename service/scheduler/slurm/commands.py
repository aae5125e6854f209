"""Slurm's commands, run with a time limit and a clean environment, with their output as rows."""

import os
import secrets
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from service.as_owner.accounts import AccountError
from service.as_owner.calls import OwnerCallError, OwnerCalls
from service.scheduler.base import SchedulerUnavailableError
from service.scheduler.slurm.sinfo import SHORT_FORMAT, WIDE_FORMAT, parse_short, parse_wide, snapshot
from service.scheduler.slurm.states import BY_CONTROLLER
from trainyard.contract.wire.cluster import ClusterSnapshot

_SECONDS = 20.0
"""Slurm's commands time out after ten seconds by default."""
_ENDED_JOB = ("Invalid job id specified", "already completing or completed")
"""scancel's messages about a job that has ended or was forgotten: nothing is left to cancel."""
_NOT_PENDING = (*_ENDED_JOB, "no longer pending execution")
"""scontrol's messages about a job that has started or ended: it is too late to change its nodes."""
_NO_ACCOUNTING = "accounting storage is disabled"
_UNKNOWN_COLUMN = "invalid"
_MAX_REASON = 200
_NO_NODES = "None assigned"
"""The nodes in the accounting of a job that never had any."""
_MAX_ERROR = 2000
_SEPARATOR = "|"

CommandCounter = Callable[[str, Literal["ok", "failed", "timeout"]], None]
"""Called for every command with its name and outcome."""


def count_nothing(_command: str, _outcome: str) -> None:
    """Ignore the command."""


@dataclass(frozen=True)
class Row:
    """One job as squeue or sacct shows it."""

    id: str
    name: str
    state: str
    detail: str
    """squeue: the reason; sacct: the exit code."""
    nodes: str
    partition: str = ""
    priority: int = 0
    start: datetime | None = None
    """When it started, or the controller's estimate."""
    end: datetime | None = None
    """squeue: when the time limit ends the job."""
    folder: str = ""
    """The job's working directory, which is the attempt's folder and stays when an operator renames the job."""
    uid: int = -1
    """The Unix account that submitted the job."""
    steps: str = ""
    """sacct: the highest exit code of a step."""


@dataclass(frozen=True)
class NodeReason:
    """Why a node is out of service."""

    text: str
    """Such as `node1 is down: Not responding`."""
    since: datetime | None


@dataclass
class SlurmCommands:
    """Queries and cancellation; submission is a separate process."""

    count: CommandCounter = count_nothing
    owners: OwnerCalls | None = None
    """Set where jobs run as their owners."""
    runs: Path | None = None
    """The folder of the runs; needed with `owners`."""
    _has_used_gpus: bool = True
    """Whether `sinfo` has the column of used GPUs; cleared when it refuses it."""

    def squeue(self, *, everyone: bool = False) -> tuple[list[Row], list[Row]]:
        """All jobs of this service that the controller lists, and the other jobs if `everyone` is set.

        Where jobs run as their owners, the first list has everything that may be a job of this service, by its name or
        folder; the caller compares the account. The controller lists ended jobs for a while. No query is by id:
        its cost would grow with the number of jobs, and an id that the controller no longer lists would be an error.
        """
        # Job names may contain anything, even line breaks, so each genuine line starts with a random marker.
        marker = secrets.token_hex(8)
        columns = f"--format={marker}|%i|%T|%S|%e|%P|%Q|%U|%N|%r|%Z|%j"
        account = [] if everyone or self.owners else [f"--user={os.getuid()}", "--array"]
        output = self._run(["squeue", *account, "--states=all", "--noheader", columns])
        return parse_queue(output, marker, os.getuid(), runs=os.path.realpath(self.runs) if self.runs else None)

    def sacct(self, *, ids: Sequence[str] = (), names: Sequence[str] = ()) -> list[Row] | None:
        """The accounting records of these ids or names, oldest first; None if the cluster has no accounting."""
        # The window ends in the future, since jobs that start later than its end would not be listed.
        window = ["--starttime=now-30days", "--endtime=now+30days"]
        selection = [f"--jobs={','.join(ids)}"] if ids else [f"--name={','.join(names)}", *window]
        columns = "--format=JobIDRaw,UID,State,ExitCode,DerivedExitCode,Start,NodeList,WorkDir,JobName"
        users = ["--allusers"] if self.owners else []
        # Names and folders may contain anything, even line breaks, so no job can know the separator.
        separator = secrets.token_hex(8)
        options = ["--allocations", "--duplicates", "--noheader", "--parsable2", f"--delimiter={separator}", *users]
        done = self._call(["sacct", *options, columns, *selection])
        # That there is no accounting is an answer, and no failure of a command, which an alarm counts.
        text = self._text("sacct", done, [_NO_ACCOUNTING])
        return parse_records(text, separator) if done.returncode == 0 else None

    def sinfo(self) -> ClusterSnapshot:
        """Partitions and nodes, with one command."""
        common = ["sinfo", "--all", "--Node", "--noheader"]
        if not self._has_used_gpus:
            return snapshot(parse_short(self._run([*common, SHORT_FORMAT])))
        try:
            return snapshot(parse_wide(self._run([*common, WIDE_FORMAT])))
        except SchedulerUnavailableError as error:
            # Old releases do not have the column; the next query omits it.
            self._has_used_gpus = not (_UNKNOWN_COLUMN in str(error).lower() and "format" in str(error).lower())
            raise

    def node_reasons(self, nodes: str) -> list[NodeReason]:
        """Why nodes of a list are out of service."""
        return parse_reasons(
            self._run(["sinfo", "--all", "--Node", "--noheader", f"--nodes={nodes}", "--format=%N|%T|%H|%E"])
        )

    def configuration(self) -> str:
        """The output of `scontrol show config`."""
        return self._run(["scontrol", "show", "config"])

    def partitions(self) -> str:
        """The output of `scontrol show partition`, a line for each."""
        return self._run(["scontrol", "--oneliner", "show", "partition"])

    def qos(self, columns: Sequence[str]) -> str:
        """Each QOS of the accounting on a line with the given columns."""
        return self._run(["sacctmgr", "--noheader", "--parsable2", "show", "qos", f"format={','.join(columns)}"])

    def associations(self, user: str, columns: Sequence[str]) -> str:
        """The user's associations in the accounting, each on a line with the given columns."""
        query = ["show", "user", "where", f"name={user}", "withassoc"]
        return self._run(["sacctmgr", "--noheader", "--parsable2", *query, f"format={','.join(columns)}"])

    def scancel(self, job: str, name: str, uid: int | None = None) -> None:
        """Cancel the job if it has this name. Slurm compares the name, so a reused id is never cancelled.

        Args:
            uid: The Unix account that submitted the job; None: the service's account.
        """
        command = ["scancel", f"--name={name}", job]
        try:
            self._run_as(uid, command, _ENDED_JOB)
        except AccountError as error:
            if os.geteuid() != 0:
                raise SchedulerUnavailableError(str(error)) from None
            # Nobody can act as a deleted account, but root can cancel its jobs.
            self._run([command[0], f"--user={uid}", *command[1:]], harmless=_ENDED_JOB)

    def exclude(self, jobs: Sequence[str], nodes: Sequence[str], uid: int | None = None) -> None:
        """Replace the excluded nodes of pending jobs of a Unix account."""
        command = ["scontrol", "update", f"jobid={','.join(jobs)}", f"excnodelist={','.join(nodes)}"]
        try:
            self._run_as(uid, command, _NOT_PENDING)
        except AccountError as error:
            raise SchedulerUnavailableError(str(error)) from None

    def _run_as(self, uid: int | None, command: list[str], harmless: Sequence[str]) -> None:
        """Run a command as a Unix account; None: the service's account.

        Raises:
            AccountError: nobody can act as the account.
            SchedulerUnavailableError: the command failed.
        """
        if uid is None or self.owners is None:
            self._run(command, harmless=harmless)
            return
        try:
            call = partial(self.owners.command, uid, command, owner_environment(), _SECONDS)
            # It is called by the tick, which serves all owners.
            status, _, errors = self.owners.briefly(uid, call)
        except OwnerCallError as error:
            self.count(command[0], "failed")
            raise SchedulerUnavailableError(f"{command[0]} as uid {uid}: {error}") from None
        self._check(command[0], status, errors[:_MAX_ERROR].strip(), harmless)

    def test_only(self, script: str) -> tuple[int, str]:
        """The exit status and error output of `sbatch --test-only`, which submits nothing."""
        done = self._call(["sbatch", "--test-only"], script.encode())
        # A refusal is a valid result.
        self.count("sbatch", "ok")
        return done.returncode, done.stderr.decode(errors="replace")

    def _run(self, command: list[str], *, harmless: Sequence[str] = ()) -> str:
        """Return the output. An error whose text is among the harmless texts is ignored."""
        return self._text(command[0], self._call(command), harmless)

    def _text(self, program: str, done: "subprocess.CompletedProcess[bytes]", harmless: Sequence[str]) -> str:
        """Return the output of a command. If it ends within a line, jobs that it lacks would look like ended jobs."""
        if done.returncode == 0 and done.stdout and not done.stdout.endswith(b"\n"):
            self.count(program, "failed")
            raise SchedulerUnavailableError(f"{program}: its output ends within a line, after {len(done.stdout)} bytes")
        self._check(program, done.returncode, done.stderr.decode(errors="replace").strip(), harmless)
        return done.stdout.decode(errors="replace")

    def _check(self, program: str, status: int, message: str, harmless: Sequence[str]) -> None:
        failed = status != 0 and not any(text in message for text in harmless)
        self.count(program, "failed" if failed else "ok")
        if failed:
            raise SchedulerUnavailableError(f"{program} exited with {status}: {message}")

    def _call(self, command: list[str], text: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        try:
            return subprocess.run(
                command,
                # The commands print local times without a zone, which are ambiguous twice a year.
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
    """The service's environment without the variables that change the output of the commands."""
    names = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_JWT", "TZ")
    return {name: os.environ[name] for name in names if name in os.environ} | {"LC_ALL": "C"}


def owner_environment() -> dict[str, str]:
    """The environment of Slurm's commands that run as the owner of a job; without the service's own credential."""
    passed = ("PATH", "SLURM_CONF", "LC_ALL")
    return {name: value for name, value in clean_environment().items() if name in passed} | {"TZ": "UTC0"}


def parse_queue(output: str, marker: str, uid: int, *, runs: str | None = None) -> tuple[list[Row], list[Row]]:
    """The output of squeue as the jobs of this service and the others.

    Args:
        runs: If given, jobs of other accounts are included that have the name of an attempt, or a folder below `runs`.
    """
    mine, others = [], []
    for line in output.splitlines():
        cells = line.split(_SEPARATOR, 10)
        if len(cells) != 11 or cells[0] != marker:
            continue
        _, number, state, start, end, partition, priority, owner, nodes, reason, rest = cells
        folder, _, name = rest.partition(_SEPARATOR)
        order = int(priority) if priority.isdigit() else 0
        by = int(owner) if owner.isdecimal() else -1
        row = Row(number, name, state, reason, nodes, partition, order, _time(start), _time(end), folder, by)
        if by != uid and not (runs and (name.startswith("ty-") or folder.startswith(f"{runs}/"))):
            others.append(row)
        elif number.isdigit():
            mine.append(row)
    return mine, others


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


def parse_reasons(output: str) -> list[NodeReason]:
    """The output of sinfo about nodes, which has a line for each partition of a node."""
    reasons = []
    for line in dict.fromkeys(output.splitlines()):
        cells = line.split("|", 3)
        if len(cells) == 4 and cells[3].strip() not in ("", "none"):
            name, state, since, reason = cells
            text = "".join(c if c.isprintable() else "?" for c in reason.strip())
            described = f"{name} is {state.rstrip('*~#!%$@^+-')}: {text[:_MAX_REASON]}"
            reasons.append(NodeReason(described, _time(since)))
    return reasons


def parse_records(output: str, separator: str) -> list[Row]:
    """The output of sacct."""
    rows = []
    for line in output.splitlines():
        fields = line.split(separator)
        if len(fields) == 9 and fields[0].isdigit():
            job_id, uid, state, code, steps, start, nodes, folder, name = fields
            state = BY_CONTROLLER if state == "CANCELLED" else state
            nodes = "" if nodes == _NO_NODES else nodes
            by = int(uid) if uid.isdecimal() else -1
            rows.append(Row(job_id, name, state, code, nodes, start=_time(start), folder=folder, uid=by, steps=steps))
    return rows
