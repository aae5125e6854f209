"""The scheduler port: the launch plan of an attempt, and the calls that the reconciler makes."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field

from trainyard.contract.wire.cluster import ClusterSnapshot

SUBMITTER_MARGIN_SECONDS = 10.0
"""How long a submitter process may outlast the time limit of its command before it is killed."""


@dataclass(frozen=True)
class LaunchPlan:
    """The submission of an attempt, as a value that users can read and tests can compare before anything happens."""

    tag: str
    """`ty-<instance>-<attempt id>`, the scheduler's name of the attempt; `[a-z0-9-]`, at most 64 characters."""
    folder: Path
    """The attempt's folder; the worker's only argument."""
    ranks: int
    environment: Mapping[str, str]
    """The complete environment of the job; nothing else is inherited."""
    script: str
    """The text that `GET /v1/jobs/{id}/script` returns."""
    time_limit_minutes: int | None = None
    nodes: int = 1
    python: str = sys.executable
    """The interpreter that runs the job, at the same path on every node."""
    uid: int | None = None
    """The Unix account as which the attempt is submitted and runs; None: the service's account."""
    submission: str = ""
    """The id of this submission of the attempt, so that an answer on disk belongs to a single submission."""


@dataclass(frozen=True)
class Accepted:
    """The scheduler has queued the attempt under this id."""

    scheduler_id: str


@dataclass(frozen=True)
class Rejected:
    """The scheduler refused: nothing was queued, and a repeated submission would be refused too."""

    message: str
    hint: str = ""
    """How to correct the request."""


@dataclass(frozen=True)
class Postponed:
    """The scheduler refused for now: nothing was queued, and a later submission may be accepted."""

    message: str


@dataclass(frozen=True)
class Ambiguous:
    """The attempt may or may not be queued; `Scheduler.find` must be called before anything else."""

    message: str


SubmitOutcome = Accepted | Rejected | Postponed | Ambiguous


@dataclass(frozen=True)
class SubmittedJob:
    """An attempt that the service believes to be in the scheduler's queue."""

    tag: str
    scheduler_id: str
    folder: Path
    uid: int | None = None
    """The Unix account as which it runs; None: the service's account."""
    is_stopping: bool = False
    """Whether the service itself has requested its end, so that nobody asks who did."""


@dataclass(frozen=True)
class QueueEntry:
    """A pending or running entry of the scheduler's queue, whichever service submitted it."""

    tag: str
    scheduler_id: str
    state: Literal["pending", "running"]
    uid: int | None = None
    """The Unix account that submitted it; None: the service's account."""


EndedAs = Literal[
    "completed",
    "failed",
    "out_of_memory",
    "cancelled",
    "dropped",
    "preempted",
    "time_limit",
    "node_failure",
    "launch_failed",
]
"""`cancelled`: a user or a program of the site removed the job; `dropped`: the scheduler itself did, such as after the
loss of its state; `launch_failed`: the job did not come so far as its first command."""


@dataclass(frozen=True)
class Canceller:
    """Who removed a job from the scheduler."""

    name: str
    """Such as `ada`, or `uid 1234` if this machine does not know the account."""
    is_administrator: bool = False
    """root or the scheduler's own account, as which programs of the site act, too."""


@dataclass(frozen=True)
class Observation:
    """The scheduler's report about one attempt."""

    state: Literal["pending", "running", "ended", "absent"]
    """`ended`: listed, and all its processes have ended. `absent`: not listed."""
    message: str = ""
    """Pending: why it waits. Ended: the scheduler's own state. Running: how to resume it, or why its end is delayed."""
    nodes: tuple[str, ...] = field(default=())
    blocked_by: tuple[str, ...] = ()
    """Pending: the tags of attempts ahead that `message` contains; callers replace them by job names."""
    estimated_start: datetime | None = None
    """Pending: the scheduler's estimate."""
    end: datetime | None = None
    """Running: when the time limit ends it, if the scheduler knows. An operator may change it."""
    suspended: bool = False
    """Running: its processes are stopped and will be resumed."""
    end_state: EndedAs | None = None
    """Ended: how, if the scheduler knows. An exit record is more precise."""
    started_at: datetime | None = None
    """Ended: when it started, if the scheduler knows."""
    canceller: Canceller | None = None
    """Ended as `cancelled`: who did it; None if nobody knows."""
    node_left: bool = False
    """Ended as `cancelled`: a node was taken out of service since the start, and `message` has the reason."""
    prolog_failed: bool = False
    """Ended: a node is out of service because its prolog failed."""
    confirmed: bool = True
    """Absent: an earlier answer did not list it either."""
    unrecorded: bool = False
    """Ended: the accounting may know more about the end, but has not recorded it yet."""

    @property
    def processes_may_live(self) -> bool:
        """Whether the processes may still run although the attempt is not in the queue: a node that lost contact to
        Slurm fails the job there, not on the node."""
        return self.state == "absent" or (self.state == "ended" and self.end_state in ("node_failure", "dropped"))


class ClusterReport(ClusterSnapshot):
    """A cluster snapshot with the data that only the service needs."""

    members: dict[str, list[str]] = Field(default_factory=dict)
    """The names of the nodes of each partition."""


@dataclass(frozen=True)
class Forecast:
    """The forecast for a batch script, if it were submitted now."""

    accepted: bool | None
    """None: the scheduler's answer was unclear."""
    message: str
    estimated_start: datetime | None = None


class SchedulerUnavailableError(Exception):
    """The scheduler did not respond. Nothing may be concluded about any job."""


class NoAnswerYetError(SchedulerUnavailableError):
    """The call goes on beside the caller, who gets its answer at a later call."""


class Scheduler(Protocol):
    """Blocking calls, made by the reconciler only and never inside a database session."""

    name: Literal["local", "slurm"]

    def submit(self, plan: LaunchPlan) -> SubmitOutcome:
        """Submit an attempt. Never raises: an unclear outcome is `Ambiguous`."""

    def observe(self, jobs: Sequence[SubmittedJob]) -> Mapping[str, Observation]:
        """The observations of the given attempts, by tag, with a constant number of scheduler calls.

        Attempts about which nothing was learned are left out.

        Raises:
            SchedulerUnavailableError: nothing was learned.
        """

    def find(self, tag: str, folder: Path, unconfirmed_tags: Sequence[str] = (), uid: int | None = None) -> list[str]:
        """The scheduler ids of all entries with this tag; empty only after a successful search.

        Args:
            uid: The Unix account to which the entries belong; entries of other accounts are ignored. None: the
                service's.
            unconfirmed_tags: The tags of the caller's next calls, which the same scheduler call can serve.

        Raises:
            SchedulerUnavailableError: nothing was learned.
        """

    def recorded_answer(self, folder: Path, submission: str, uid: int | None = None) -> SubmitOutcome | None:
        """The answer to a submission as its process left it in the attempt's folder; None if it left none.

        Args:
            submission: `LaunchPlan.submission`.
            uid: As for `find`.
        """

    def own_entries(self) -> list[QueueEntry]:
        """The entries that may be attempts of this service; they may be a minute old.

        Where jobs run as their owners, any user may have made such an entry.

        Raises:
            SchedulerUnavailableError: nothing was learned.
        """

    def cancel(self, job: SubmittedJob) -> None:
        """Request the end of an attempt, first by SIGTERM; may be repeated. `observe` reports when it has ended.

        Raises:
            NoAnswerYetError: the request is still being made; the next call has its outcome.
            SchedulerUnavailableError: the request may not have arrived.
        """

    def cluster(self) -> ClusterSnapshot:
        """The cluster's resources and how much of them is free, with a constant number of scheduler calls.

        Raises:
            SchedulerUnavailableError: nothing was learned.
        """


@runtime_checkable
class Forecaster(Protocol):
    """A scheduler that can estimate when a batch script would start."""

    def forecast(self, script: str) -> Forecast:
        """The forecast for a script, which is not submitted. Raises SchedulerUnavailableError: nothing was learned."""


@runtime_checkable
class Accounting(Protocol):
    """A scheduler with records of ends that may come late."""

    def recorded_ends(self, jobs: Sequence[SubmittedJob]) -> Mapping[str, Observation]:
        """How attempts ended that were observed as `unrecorded`, by tag; attempts without a record are left out.

        Raises:
            SchedulerUnavailableError: nothing was learned.
        """


@runtime_checkable
class QueueEditor(Protocol):
    """A scheduler that can exclude nodes from pending jobs in its queue."""

    def exclude_nodes(self, jobs: Sequence[SubmittedJob], nodes: Sequence[str]) -> None:
        """Replace the excluded nodes of pending jobs of one Unix account; jobs that have started are left alone.

        Raises:
            SchedulerUnavailableError: the request may not have arrived.
        """
