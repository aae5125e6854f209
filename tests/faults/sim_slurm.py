"""A simulated Slurm behind the scheduler port, with delays, purged jobs and lost responses; it survives crashes."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from service.core.clock import Clock
from service.scheduler.base import (
    Accepted,
    Ambiguous,
    EndedAs,
    LaunchPlan,
    Observation,
    QueueEntry,
    Rejected,
    SchedulerUnavailableError,
    SubmitOutcome,
    SubmittedJob,
)
from trainyard.contract.wire.cluster import ClusterSnapshot

Mode = Literal["accept", "lose-answer", "drop", "reject", "die-after"]


@dataclass
class SimJob:
    """An entry of the queue."""

    id: str
    tag: str
    folder: Path
    visible_at: float
    state: Literal["pending", "running", "ended"] = "pending"
    end_state: EndedAs | None = None
    granted: bool = False
    """Whether its claim was granted, so that it trains."""
    purged: bool = False
    """Whether the controller has purged it; the accounting still has it."""
    cancel_requested: bool = False
    forgotten: bool = False
    """Whether the controller has lost it; it lists the job again if it starts all the same."""


@dataclass
class SimSlurm:
    """The scheduler port over a list of jobs. With a file, each change is on disk before the call returns."""

    clock: Clock
    file: Path | None = None
    name: Literal["local", "slurm"] = "slurm"
    mode: Mode = "accept"
    lag_seconds: float = 0.0
    down: bool = False
    accounting: bool = True
    jobs: list[SimJob] = field(default_factory=list)
    next_id: int = 1

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            self.jobs, self.next_id = pickle.loads(self.file.read_bytes())

    def save(self) -> None:
        if self.file is not None:
            self.file.write_bytes(pickle.dumps((self.jobs, self.next_id)))

    def submit(self, plan: LaunchPlan) -> SubmitOutcome:
        if self.down or self.mode == "drop":
            return Ambiguous("Socket timed out on send/recv operation")
        if self.mode == "reject":
            return Rejected("Slurm refused the job: invalid partition name specified")
        job = SimJob(str(self.next_id), plan.tag, plan.folder, self._time() + self.lag_seconds)
        self.jobs.append(job)
        self.next_id += 1
        self.save()
        if self.mode == "die-after":
            raise SystemExit("the service dies before it gets the answer")
        return Ambiguous("Socket timed out on send/recv operation") if self.mode == "lose-answer" else Accepted(job.id)

    def observe(self, jobs: Sequence[SubmittedJob]) -> Mapping[str, Observation]:
        self._check()
        return {job.tag: self._observation(job) for job in jobs}

    def find(self, tag: str, folder: Path, unconfirmed_tags: Sequence[str] = (), uid: int | None = None) -> list[str]:
        self._check()
        matching = [job for job in self.jobs if job.tag == tag and self._visible(job)]
        return [
            job.id for job in sorted(matching, key=lambda job: (not job.granted, job.state == "ended", int(job.id)))
        ]

    def recorded_answer(self, folder: Path, submission: str, uid: int | None = None) -> SubmitOutcome | None:
        return None

    def own_entries(self) -> list[QueueEntry]:
        self._check()
        listed = [job for job in self.jobs if self._visible(job)]
        return [QueueEntry(job.tag, job.id, job.state) for job in listed if job.state != "ended"]

    def cancel(self, job: SubmittedJob) -> None:
        self._check()
        for sim_job in self.jobs:
            if (sim_job.id, sim_job.tag) == (job.scheduler_id, job.tag) and sim_job.state != "ended":
                sim_job.cancel_requested = True
                if sim_job.state == "pending":
                    sim_job.state, sim_job.end_state = "ended", "cancelled"
        self.save()

    def cluster(self) -> ClusterSnapshot:
        self._check()
        return ClusterSnapshot()

    def add_duplicate(self, job: SimJob) -> None:
        """Add a duplicate entry with the same name."""
        self.jobs.append(SimJob(str(self.next_id), job.tag, job.folder, job.visible_at))
        self.next_id += 1
        self.save()

    def end(self, job: SimJob, end_state: EndedAs) -> None:
        job.state, job.end_state = "ended", end_state
        self.save()

    def _observation(self, submitted: SubmittedJob) -> Observation:
        for job in self.jobs:
            if (job.id, job.tag) == (submitted.scheduler_id, submitted.tag) and self._visible(job):
                if job.state == "pending":
                    return Observation("pending", "Waiting in Slurm.")
                if job.state == "running":
                    return Observation("running", nodes=("n1",))
                return Observation("ended", f"Slurm: {job.end_state}", ("n[1-2]",), end_state=job.end_state)
        return Observation("absent")

    def _visible(self, job: SimJob) -> bool:
        known = not job.forgotten and (not job.purged or self.accounting)
        return known and job.visible_at <= self._time()

    def _time(self) -> float:
        return self.clock().timestamp()

    def _check(self) -> None:
        if self.down:
            raise SchedulerUnavailableError("slurmctld does not answer")
