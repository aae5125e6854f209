"""Ends of jobs on a real Slurm, as the service's own commands show them.

Each record has the raw output of each command, so that the parsers and the verdict can be replayed without Slurm.
"""

import json
import os
import pwd
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

from service.as_owner.accounts import Accounts
from service.as_owner.calls import OwnerCalls
from service.scheduler.base import SchedulerUnavailableError, SubmittedJob
from service.scheduler.slurm.commands import SlurmCommands
from service.scheduler.slurm.scheduler import SlurmScheduler
from tests.support.owners import UnixUser
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.contract.layout import write_atomic

_TOKENS = {"squeue": r"--format=([0-9a-f]{16})\|", "sacct": r"--delimiter=([0-9a-f]{16})"}
"""The options with the random text that separates the lines or fields of a command's output."""
_TOKEN = "<separator>"
LOG = "log"
_LAB = re.compile(r"(/[\w.-]+)*/trainyard-slurm-\w+")
_SETTINGS = "ClusterName|SlurmUser|PrivateData|AccountingStorage(Type|Enforce)"
"""The lines of `scontrol show config` that the service reads."""
_LIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED")


@dataclass
class RecordedEnd:
    """A job, and the output of each command that observed it."""

    name: str
    accounting: str
    """`slurmdbd`, `none`, or `refused`: sacct answered with an error."""
    tag: str
    scheduler_id: str
    folder: str
    uid: int
    started: bool
    """Whether the batch script ran, in which the service's worker would have claimed its attempt."""
    accounts: dict[str, str]
    """The names of the Unix accounts of the lab, by uid."""
    outputs: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    log: str = ""
    """What Slurm and the job wrote to their output, if the scenario has named a file of that name."""

    @property
    def job(self) -> SubmittedJob:
        return SubmittedJob(self.tag, self.scheduler_id, Path(self.folder), self.uid)

    def account(self, uid: int) -> pwd.struct_passwd:
        """Return an account as the lab's machine knew it, in place of `pwd.getpwuid`."""
        return pwd.struct_passwd((self.accounts[str(uid)], "", uid, 0, "", "", ""))


class RecordingCommands(SlurmCommands):
    """Slurm's commands, with their output in a record."""

    record: RecordedEnd

    def _call(self, command: list[str], text: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        try:
            done = super()._call(command, text)
        except SchedulerUnavailableError as error:
            self.record.errors[command[0]] = str(error)
            raise
        if done.returncode:
            message = done.stderr.decode(errors="replace").strip()
            self.record.errors[command[0]] = f"{command[0]} exited with {done.returncode}: {message}"
            return done
        stored = done.stdout.decode(errors="replace")
        if token := _token(command):
            stored = stored.replace(token, _TOKEN)
        if command[0] == "squeue":
            stored = "".join(f"{line}\n" for line in stored.splitlines() if f"|{self.record.scheduler_id}|" in line)
        if command[0] == "scontrol":
            stored = "".join(f"{line}\n" for line in stored.splitlines() if re.match(_SETTINGS, line))
        self.record.outputs[command[0]] = stored
        return done


class ReplayedCommands(SlurmCommands):
    """Commands that answer as they did when the record was made."""

    record: RecordedEnd

    @classmethod
    def of(cls, record: RecordedEnd) -> "ReplayedCommands":
        commands = cls()
        commands.record = record
        return commands

    def _call(self, command: list[str], text: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        program = command[0]
        if error := self.record.errors.get(program):
            if ended := re.fullmatch(r"\w+ exited with (\d+): (.*)", error, re.DOTALL):
                return subprocess.CompletedProcess(command, int(ended[1]), b"", ended[2].encode())
            raise SchedulerUnavailableError(error)
        output = self.record.outputs[program].replace(_TOKEN, _token(command))
        return subprocess.CompletedProcess(command, 0, output.encode(), b"")


def _token(command: Sequence[str]) -> str:
    pattern = _TOKENS.get(command[0], "$^")
    return next((match[1] for word in command if (match := re.match(pattern, word))), "")


def scheduler_with(commands: SlurmCommands, runs: Path) -> SlurmScheduler:
    """Return a scheduler of the service that calls these commands, for jobs of several accounts."""
    commands.owners = OwnerCalls(Accounts(1000))
    commands.runs = runs
    return SlurmScheduler(poll_seconds=0, owners=commands.owners, runs=runs, commands=commands)


def load(file: Path) -> list[RecordedEnd]:
    return [RecordedEnd(**record) for record in json.loads(file.read_text())["ends"]]


class Recorder:
    """Runs jobs in a lab and records their ends."""

    def __init__(self, lab: SlurmLab, users: Sequence[UnixUser], accounting: str) -> None:
        self.lab = lab
        self.owner, self.operator = users
        self.accounting = accounting
        self.records: list[RecordedEnd] = []
        self.runs = lab.root / "runs"
        self.runs.mkdir(exist_ok=True)
        self.runs.chmod(0o777)

    def submit(self, name: str, script: str = "sleep 300", *options: str) -> RecordedEnd:
        """Submit a job of the owner, as the service does."""
        folder = self.runs / re.sub(r"\W+", "-", name)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        tag = f"ty-main-{len(self.records):016x}"
        text = f"touch {folder}/started; {script}"
        arguments = ["--parsable", "--no-requeue", f"--job-name={tag}", f"--chdir={folder}", "--output=/dev/null"]
        number = self.run_as(self.owner, "sbatch", *arguments, *options, "--wrap", text).strip()
        accounts = {"0": "root", str(self.owner.uid): "ada", str(self.operator.uid): "olivia"}
        record = RecordedEnd(name, self.accounting, tag, number, str(folder), self.owner.uid, False, accounts)
        self.records.append(record)
        return record

    def run_as(self, user: UnixUser, *command: str) -> str:
        return self.lab.run("setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", *command)

    def started(self, name: str, script: str = "sleep 300", *options: str) -> RecordedEnd:
        """Submit a job and wait until its script runs."""
        record = self.submit(name, script, *options)
        wait_until((Path(record.folder) / "started").exists, 60, f"{name} to start")
        return record

    def state(self, record: RecordedEnd) -> str:
        lines = self.lab.run("squeue", "--states=all", "--noheader", "-o", "%i|%T").splitlines()
        return next(
            (state for number, state in (line.split("|") for line in lines) if number == record.scheduler_id), ""
        )

    def observe(self, record: RecordedEnd, *states: str) -> RecordedEnd:
        """Record the job when it is in one of the states; by default, when it is over."""

        def reached() -> bool:
            state = self.state(record)
            # In its time of grace, a preempted job has two states by turns.
            time.sleep(0 if states else 0.5)
            return state in states if states else state not in (*_LIVE, "") and self.state(record) == state

        wait_until(reached, 150, f"{record.name}, which is {self.state(record)}")
        if self.accounting == "slurmdbd" and not states:
            wait_until(lambda: self.recorded_state(record).split(" ")[0] not in ("", *_LIVE), 60, "the record")
        return self.record_now(record)

    def record_now(self, record: RecordedEnd) -> RecordedEnd:
        """Record what the service's commands answer about the job at this moment."""
        commands = RecordingCommands()
        commands.record = record
        log = Path(record.folder) / LOG
        record.log = log.read_text() if log.exists() else ""
        record.started = (Path(record.folder) / "started").exists()
        with suppress(SchedulerUnavailableError), patch.dict(os.environ, self.lab.environment):
            scheduler_with(commands, self.runs).observe([record.job])
            commands.configuration()
        return record

    def recorded_state(self, record: RecordedEnd) -> str:
        """Return the state in the accounting, whose record of a short job lacks the name and the uid for a while."""
        query = ("sacct", "--allocations", "--noheader", "--parsable2", "-o", "JobName,State", "-j")
        lines = self.lab.run(*query, record.scheduler_id).splitlines()
        return next((state for name, state in (line.split("|") for line in lines) if name == record.tag), "")

    def again(self, record: RecordedEnd, name: str) -> RecordedEnd:
        """Return a further record of the same job."""
        self.records.append(replace(record, name=name, accounting=self.accounting, outputs={}, errors={}))
        return self.records[-1]

    def add_accounts(self) -> None:
        """Let the owner submit, and make the other user an operator of Slurm."""
        if self.accounting == "slurmdbd":
            self.lab.run("sacctmgr", "--immediate", "add", "account", "science")
            for user in ("root", self.owner.name, self.operator.name):
                self.lab.run("sacctmgr", "--immediate", "add", "user", user, "account=science")
            self.lab.run("sacctmgr", "--immediate", "modify", "user", self.operator.name, "set", "adminlevel=operator")

    @contextmanager
    def configured(self, *lines: str) -> Iterator[None]:
        """Restart the controller and the nodes with further lines in slurm.conf."""
        before = self.lab.conf.read_text()
        write_atomic(self.lab.conf, before + "".join(f"{line}\n" for line in lines))
        self.restart()
        try:
            yield
        finally:
            write_atomic(self.lab.conf, before)
            self.lab.cancel_all()
            self.restart()
            self.resume()

    def restart(self) -> None:
        for node in ("node1", "node2"):
            self.lab.stop_node(node)
        self.lab.stop_controller()
        self.lab.start_controller()
        for node in ("node1", "node2"):
            self.lab.start_node(node)
        self.wait_for_nodes()

    def wait_for_nodes(self) -> None:
        def are_up() -> bool:
            with suppress(RuntimeError):
                return "*" not in self.lab.run("sinfo", "--noheader", "--Node", "-p", "gpu", "-o", "%T")
            return False

        wait_until(are_up, 90, "the nodes to respond")

    def resume(self) -> None:
        for node in ("node1", "node2"):
            with suppress(RuntimeError):
                self.lab.run("scontrol", "update", f"nodename={node}", "state=resume")
        wait_until(lambda: set(self.node_states()) <= {"idle", "mixed", "allocated", "completing"}, 60, "idle nodes")

    def node_states(self) -> list[str]:
        return self.lab.run("sinfo", "--noheader", "--Node", "-p", "gpu", "-o", "%T").split()

    def drain(self, node: str, reason: str) -> None:
        self.lab.run("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")


def write(file: Path, records: Sequence[RecordedEnd], slurm: str) -> None:
    """Write a corpus, in which each lab is in the folder `/lab`."""
    text = json.dumps({"slurm": slurm, "ends": [asdict(record) for record in records]}, indent=1)
    file.write_text(_LAB.sub("/lab", text) + "\n")
