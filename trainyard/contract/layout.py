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


class _Entry:
    """A file or folder of a layout, by its path below the layout's root."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, layout: "_Layout", owner: type["_Layout"]) -> Path:
        return layout.root / self._path


@dataclass(frozen=True)
class _Layout:
    """A folder of a run."""

    root: Path


class CheckpointLayout(_Layout):
    """One checkpoint folder. Without its manifest it is not a checkpoint."""

    manifest = _Entry(MANIFEST)

    @property
    def step(self) -> int:
        return int(self.root.name.removeprefix("step-"))


class AttemptLayout(_Layout):
    """`<job>/attempts/<name>`, where `attempt_folder_name` makes the name."""

    token = _Entry("token")
    launch = _Entry("launch.json")
    claim = _Entry("claim.json")
    """Created with O_EXCL by the claimant when the service is not reachable."""

    def nodes(self, scheduler_id: str) -> Path:
        """Files that the nodes of a scheduler job with several nodes exchange; see `SignedFolder`."""
        return self.root / f"nodes-{scheduler_id}"

    stop_request = _Entry("stop")
    """The stop request: an exit reason as text; written by the launcher, read by rank 0."""
    progress = _Entry("progress")
    """One small file a rank: how far it is, for the watchdog."""

    def progress_file(self, rank: int) -> Path:
        return self.progress / f"rank-{rank}.json"

    profile_request = _Entry("profile.json")
    """A requested profiler trace; written by the launcher, read by rank 0."""
    stalled = _Entry("stalled")
    """Written by node 0 to notify the other nodes that the run has stalled."""
    stall_request = _Entry("stall-request")
    """Written by node 0 to request the states of all ranks, because the run may hang."""

    def rank_states(self, node: int) -> Path:
        """The states of a node's ranks, for the latest request."""
        return self.root / f"rank-states-{node}.json"

    def collectives(self, rank: int) -> Path:
        """The latest collectives of a rank, for the latest request."""
        return self.root / "collectives" / f"rank-{rank}.json"

    def idle(self, node: int) -> Path:
        """Exists while the program stands still on a node; read by node 0."""
        return self.root / f"idle-{node}"

    unused = _Entry("unused.json")
    """Written by a node to end the attempt on all nodes, because its program leaves ranks or GPUs unused."""
    code = _Entry("code")
    """The user's code, unpacked for this attempt by node 0. For a program it becomes `work`, and is here again when
    the next attempt begins."""
    output = _Entry("output.json")
    """The program's files that came from an earlier attempt, as JSON; written once `code` is complete."""
    packages = _Entry("packages")
    """Our packages for ranks in another Python; written by node 0."""

    @property
    def work(self) -> Path:
        """The working directory of the job's program: the same path in all attempts."""
        return RunLayout(self.root.parent.parent).work

    def rank_environment(self, node: int) -> Path:
        """The interpreter and the variables that the launcher of a node prepared for its ranks."""
        return self.root / f"environment-{node}.json"

    def placement(self, node: int) -> Path:
        """Which ranks a node runs, under its name in the scheduler; written when torchrun starts them."""
        return self.root / f"placement-{node}.json"

    container = _Entry("container")
    """Files that the launchers write for the containers of the ranks."""

    def polls(self, execution: int) -> Path:
        """Exists if the execution's program has called `should_stop`."""
        return self.root / f"polls-{execution:06d}"

    def yielded(self, execution: int) -> Path:
        """Written by a script that ends because of a stop request, and not because it is complete."""
        return self.root / f"yielded-{execution:06d}"

    logs = _Entry("logs")

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def rank_logs(self) -> list[Path]:
        """Return the logs of the ranks so far."""
        return sorted(self.logs.glob("rank-*.log"))

    launch_log = _Entry("logs/launch.log")

    def node_log(self, node: int) -> Path:
        """The output of the launcher and torchrun on a node."""
        return self.launch_log if node == 0 else self.logs / f"launch-{node}.log"

    spool = _Entry("spool")

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

    errors = _Entry("errors")

    def rank_error(self, rank: int) -> Path:
        return self.errors / f"rank-{rank}.json"

    submitit = _Entry("submitit")
    """The files of submitit: batch script, pickled call, and the scheduler's own output."""
    pickled_call = _Entry("submitit/call.pkl")
    """The call that submitit runs; written before sbatch is called."""

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


class RunLayout(_Layout):
    """`<runs>/<job>`: all files of a job."""

    spec = _Entry("spec.json")
    creator = _Entry("created_by.json")
    """The user who submitted the job, for its adoption after a restore."""
    current = _Entry("current.json")
    """The job's current attempt, for a worker that cannot reach the service."""
    attempts = _Entry("attempts")

    def attempt(self, name: str) -> AttemptLayout:
        return AttemptLayout(self.attempts / name)

    checkpoints = _Entry("checkpoints")

    def checkpoint(self, step: int) -> CheckpointLayout:
        return CheckpointLayout(self.checkpoints / f"step-{step:010d}")

    damage = _Entry("checkpoints/damaged.json")
    """Written when all checkpoints turned out to be damaged: the execution that found it."""
    origins = _Entry("origin")
    """The folder with the checkpoint of another job from which a run starts."""

    def origin(self, step: int) -> CheckpointLayout:
        return CheckpointLayout(self.origins / f"step-{step:010d}")

    def complete_checkpoints(self) -> list[CheckpointLayout]:
        """Return the checkpoints with a manifest, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        folders = (CheckpointLayout(path) for path in sorted(self.checkpoints.glob("step-" + "[0-9]" * 10)))
        return [checkpoint for checkpoint in folders if checkpoint.manifest.is_file()]

    micro_size = _Entry("micro_size.json")
    """The micro-batch size that `batch.micro_size: auto` selected, and its layout."""
    reference = _Entry("reference.npz")
    """Log-probabilities of a reference model, with which objectives such as DPO compare the trained model."""
    export = _Entry("export")
    artifacts = _Entry("artifacts")
    """Traces and tables. Every file below this folder can be downloaded."""
    work = _Entry("work")
    """The working directory of a program, which is the `code` of the newest attempt that started it."""
    profiles = _Entry("artifacts/profile")
    """Profiler traces, each with a table of the most expensive operations."""
    samples = _Entry("artifacts/samples")
    """Texts generated at evaluations, by step."""

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
