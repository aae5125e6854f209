"""The paths of a run directory, and atomic creation of files."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"
DATA_CACHE = "cache"
"""The folder among the runs with the tokens of data files: `<account's uid>/<two digits>/<key>`."""
DATA_CACHE_ENTRY = "entry.json"
"""A file in each entry of that folder. Its modification time is the time of the last use."""


@dataclass(frozen=True)
class CheckpointLayout:
    """One checkpoint folder. Without its manifest it is not a checkpoint."""

    root: Path

    @property
    def manifest(self) -> Path:
        return self.root / MANIFEST

    @property
    def step(self) -> int:
        return int(self.root.name.removeprefix("step-"))


@dataclass(frozen=True)
class AttemptLayout:
    """`<job>/attempts/<name>`, where `attempt_folder_name` makes the name."""

    root: Path

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def launch(self) -> Path:
        return self.root / "launch.json"

    @property
    def claim(self) -> Path:
        """Created with O_EXCL by the claimant when the service is not reachable."""
        return self.root / "claim.json"

    def nodes(self, scheduler_id: str) -> Path:
        """Files that the nodes of a scheduler job with several nodes exchange; see `SignedFolder`."""
        return self.root / f"nodes-{scheduler_id}"

    @property
    def stop_request(self) -> Path:
        """The stop request: an exit reason as text; written by the launcher, read by rank 0."""
        return self.root / "stop"

    @property
    def progress(self) -> Path:
        """One small file a rank: how far it is, for the watchdog."""
        return self.root / "progress"

    def progress_file(self, rank: int) -> Path:
        return self.progress / f"rank-{rank}.json"

    @property
    def profile_request(self) -> Path:
        """A requested profiler trace; written by the launcher, read by rank 0."""
        return self.root / "profile.json"

    @property
    def stalled(self) -> Path:
        """Written by node 0 to notify the other nodes that the run has stalled."""
        return self.root / "stalled"

    @property
    def stall_request(self) -> Path:
        """Written by node 0 to request the states of all ranks, because the run may hang."""
        return self.root / "stall-request"

    def rank_states(self, node: int) -> Path:
        """The states of a node's ranks, for the latest request."""
        return self.root / f"rank-states-{node}.json"

    def collectives(self, rank: int) -> Path:
        """The latest collectives of a rank, for the latest request."""
        return self.root / "collectives" / f"rank-{rank}.json"

    def idle(self, node: int) -> Path:
        """Exists while the program stands still on a node; read by node 0."""
        return self.root / f"idle-{node}"

    @property
    def unused(self) -> Path:
        """Written by a node to end the attempt on all nodes, because its program leaves ranks or GPUs unused."""
        return self.root / "unused.json"

    @property
    def code(self) -> Path:
        """The user's code, unpacked for this attempt by node 0. For a program it becomes `work`, and is here again when
        the next attempt begins."""
        return self.root / "code"

    @property
    def work(self) -> Path:
        """The working directory of the job's program: the same path in all attempts."""
        return RunLayout(self.root.parent.parent).work

    @property
    def output(self) -> Path:
        """The program's files that came from an earlier attempt, as JSON; written once `code` is complete."""
        return self.root / "output.json"

    @property
    def packages(self) -> Path:
        """Our packages for ranks in another Python; written by node 0."""
        return self.root / "packages"

    def rank_environment(self, node: int) -> Path:
        """The interpreter and the variables that the launcher of a node prepared for its ranks."""
        return self.root / f"environment-{node}.json"

    def placement(self, node: int) -> Path:
        """Which ranks a node runs, under its name in the scheduler; written when torchrun starts them."""
        return self.root / f"placement-{node}.json"

    @property
    def container(self) -> Path:
        """Files that the launchers write for the containers of the ranks."""
        return self.root / "container"

    def polls(self, execution: int) -> Path:
        """Exists if the execution's program has called `should_stop`."""
        return self.root / f"polls-{execution:06d}"

    def yielded(self, execution: int) -> Path:
        """Written by a script that ends because of a stop request, and not because it is complete."""
        return self.root / f"yielded-{execution:06d}"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def rank_logs(self) -> list[Path]:
        """Return the logs of the ranks so far."""
        return sorted(self.logs.glob("rank-*.log"))

    @property
    def launch_log(self) -> Path:
        return self.logs / "launch.log"

    def node_log(self, node: int) -> Path:
        """The output of the launcher and torchrun on a node."""
        return self.launch_log if node == 0 else self.logs / f"launch-{node}.log"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    def spool_file(self, execution: int) -> Path:
        """One JSON record a line; see `trainyard.contract.wire.spool`."""
        return self.spool / f"execution-{execution:06d}.jsonl"

    def tracker_spool(self, execution: int, node: int) -> Path:
        """Reports of the trackers of the program on a node, in the form of `spool_file`."""
        return self.spool / f"execution-{execution:06d}.node-{node}.jsonl"

    def event_claim(self, name: str) -> Path:
        """With several nodes: the index of the node that follows a TensorBoard event file, as text."""
        return self.root / "event_files" / name

    def run_files(self, node: int) -> Path:
        """The run files that W&B's clients of a node write: a JSON object a line."""
        return self.root / f"run_files-{node}.jsonl"

    def all_run_files(self) -> list[Path]:
        """The lists of run files of all nodes."""
        return sorted(self.root.glob("run_files-*.jsonl"))

    def spool_acknowledged(self, execution: int) -> Path:
        """Bytes of the spool file that the service has acknowledged, as text."""
        return self.spool / f"execution-{execution:06d}.acknowledged"

    @property
    def errors(self) -> Path:
        return self.root / "errors"

    def rank_error(self, rank: int) -> Path:
        return self.errors / f"rank-{rank}.json"

    @property
    def submitit(self) -> Path:
        """The files of submitit: batch script, pickled call, and the scheduler's own output."""
        return self.root / "submitit"

    @property
    def pickled_call(self) -> Path:
        """The call that submitit runs; written before sbatch is called."""
        return self.submitit / "call.pkl"

    def finish(self, execution: int) -> Path:
        return self.root / f"finish-{execution:06d}.json"

    def earlier(self) -> "list[AttemptLayout]":
        """Return the earlier attempts, newest first."""
        others = (AttemptLayout(path) for path in self.root.parent.glob("*"))
        earlier = [other for other in others if other.number < self.number]
        return sorted(earlier, key=lambda other: (other.number, other.root.stat().st_mtime), reverse=True)

    @property
    def number(self) -> int:
        """The attempt's number in its job; 0 if the name has none."""
        number = self.root.name.partition("-")[0]
        return int(number) if number.isascii() and number.isdigit() else 0


@dataclass(frozen=True)
class RunLayout:
    """`<runs>/<job>`: all files of a job."""

    root: Path

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def creator(self) -> Path:
        """The user who submitted the job, for its adoption after a restore."""
        return self.root / "created_by.json"

    @property
    def current(self) -> Path:
        """The job's current attempt, for a worker that cannot reach the service."""
        return self.root / "current.json"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    def attempt(self, name: str) -> AttemptLayout:
        return AttemptLayout(self.attempts / name)

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> CheckpointLayout:
        return CheckpointLayout(self.checkpoints / f"step-{step:010d}")

    @property
    def damage(self) -> Path:
        """Written when all checkpoints turned out to be damaged: the execution that found it."""
        return self.checkpoints / "damaged.json"

    @property
    def origins(self) -> Path:
        """The folder with the checkpoint of another job from which a run starts."""
        return self.root / "origin"

    def origin(self, step: int) -> CheckpointLayout:
        return CheckpointLayout(self.origins / f"step-{step:010d}")

    def complete_checkpoints(self) -> list[CheckpointLayout]:
        """Return the checkpoints with a manifest, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        folders = (CheckpointLayout(path) for path in sorted(self.checkpoints.glob("step-" + "[0-9]" * 10)))
        return [checkpoint for checkpoint in folders if checkpoint.manifest.is_file()]

    @property
    def micro_size(self) -> Path:
        """The micro-batch size that `batch.micro_size: auto` selected, and its layout."""
        return self.root / "micro_size.json"

    @property
    def reference(self) -> Path:
        """Log-probabilities of a reference model, with which objectives such as DPO compare the trained model."""
        return self.root / "reference.npz"

    @property
    def export(self) -> Path:
        return self.root / "export"

    @property
    def artifacts(self) -> Path:
        """Traces and tables. Every file below this folder can be downloaded."""
        return self.root / "artifacts"

    @property
    def work(self) -> Path:
        """The working directory of a program, which is the `code` of the newest attempt that started it."""
        return self.root / "work"

    @property
    def profiles(self) -> Path:
        """Profiler traces, each with a table of the most expensive operations."""
        return self.artifacts / "profile"

    @property
    def samples(self) -> Path:
        """Texts generated at evaluations, by step."""
        return self.artifacts / "samples"

    def flight_records(self, attempt: str) -> Path:
        """The latest collectives of each rank of an attempt, written when it stalls or communication fails."""
        return self.artifacts / "flight_recorder" / attempt

    def stall_evidence(self, attempt: str, number: int) -> Path:
        """What was known of the ranks at a suspected stall of an attempt."""
        return self.artifacts / "stalls" / attempt / f"{number}.json"


def attempt_folder_name(number: int, attempt_id: str) -> str:
    """Return the name of an attempt's folder. The id keeps a service on a restored database, which may give a number
    again, out of the folder of an attempt that it does not know; the number is for readers."""
    return f"{number}-{attempt_id}"


def write_atomic(path: Path, content: bytes | str, *, mode: int = 0o666) -> None:
    """Replace a file atomically, by fsync and rename: readers see the old or the new content.

    Args:
        mode: Permissions of the file, reduced by the process's umask.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def create_exclusive(path: Path, content: str, *, mode: int = 0o666) -> bool:
    """Create a file with its whole content unless it exists; return whether this call created it.

    Args:
        mode: Permissions of the file, reduced by the process's umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        # An NFS client repeats a request whose response was lost, and then gets EEXIST for its own link.
        return os.stat(temporary).st_nlink == 2
    finally:
        temporary.unlink(missing_ok=True)
    return True
