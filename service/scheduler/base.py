"""The scheduler port: the plan of a launch, and the questions the reconciler asks of a scheduler."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from trainyard.contract.wire.cluster import ClusterSnapshot

SUBMITTER_MARGIN_SECONDS = 10.0
"""What a submitter has beside the command's own limit, before it is killed."""


@dataclass(frozen=True)
class LaunchPlan:
    """What is submitted, as a value: people can read it and tests can compare it before anything happens."""

    tag: str
    """`ty-<instance>-<attempt id>`, the scheduler's name of the attempt; `[a-z0-9-]`, at most 64 characters."""
    folder: Path
    """The attempt's folder; the worker's only argument."""
    ranks: int
    environment: Mapping[str, str]
    """The whole environment of the job: allow-listed, nothing inherited."""
    script: str
    """What `GET /v1/jobs/{id}/script` shows."""
    time_limit_minutes: int | None = None
    nodes: int = 1
    python: str = sys.executable
    """The interpreter that runs the job; the same path on every node."""


@dataclass(frozen=True)
class Accepted:
    """The scheduler has it, under this id."""

    scheduler_id: str


@dataclass(frozen=True)
class Rejected:
    """A clear no: nothing was queued, and trying again would not help."""

    message: str
    hint: str = ""
    """What to change."""


@dataclass(frozen=True)
class Postponed:
    """A clear no for now: nothing was queued, and the same question may be answered otherwise later."""

    message: str


@dataclass(frozen=True)
class Ambiguous:
    """Perhaps it was queued, perhaps not: look before doing anything else."""

    message: str


SubmitOutcome = Accepted | Rejected | Postponed | Ambiguous


@dataclass(frozen=True)
class Known:
    """An attempt that the service believes the scheduler has."""

    tag: str
    scheduler_id: str
    folder: Path


EndedAs = Literal["completed", "failed", "out_of_memory", "cancelled", "preempted", "time_limit", "node_failure"]


@dataclass(frozen=True)
class Observation:
    """What the scheduler says of one attempt, now."""

    state: Literal["pending", "running", "ended", "absent"]
    """`ended`: it had it, and nothing of it runs any more. `absent`: it does not know it."""
    message: str = ""
    """While pending: in plain words, what it waits for; once ended, the scheduler's word for it; while suspended, what
    to do about it."""
    nodes: tuple[str, ...] = field(default=())
    behind: tuple[str, ...] = ()
    """While pending: the tags before it that `message` holds; a caller that knows better names puts them in their
    place."""
    estimated_start: datetime | None = None
    """While pending: the scheduler's guess."""
    suspended: bool = False
    """While running: its processes are stopped, and it goes on later."""
    ended_as: EndedAs | None = None
    """Once ended: how, where the scheduler knows. The worker's own last word says more."""


@dataclass(frozen=True)
class Forecast:
    """What would become of a script, were it submitted now."""

    accepted: bool | None
    """None: the answer was not clear."""
    message: str
    estimated_start: datetime | None = None


class SchedulerUnavailableError(Exception):
    """The scheduler could not be asked. Nothing may be concluded from that."""


class Scheduler(Protocol):
    """Blocking; called by the reconciler alone, never inside a database session."""

    name: Literal["local", "slurm"]

    def submit(self, plan: LaunchPlan) -> SubmitOutcome:
        """Hand the attempt over. Never raises: what is unclear is `Ambiguous`."""
        ...

    def observe(self, known: Sequence[Known]) -> Mapping[str, Observation]:
        """The state of every attempt asked for, by tag; a constant number of scheduler calls.

        One of which nothing could be learned is left out.

        Raises:
            SchedulerUnavailableError: nothing was learned.
        """
        ...

    def find(self, tag: str, folder: Path, beside: Sequence[str] = ()) -> list[str]:
        """The scheduler ids of everything queued or running under this tag; empty only after a successful look.

        Args:
            beside: tags that will be looked for in the same breath: one question may serve all of them.

        Raises:
            SchedulerUnavailableError: nothing was learned.
        """
        ...

    def cancel(self, known: Known) -> None:
        """Ask for its end, politely at first; repeated calls are harmless. `observe` tells when it is over.

        Raises:
            SchedulerUnavailableError: the request may not have arrived.
        """
        ...

    def cluster(self) -> ClusterSnapshot:
        """What there is to run on, and how much of it is free; as many calls whatever its size.

        Raises:
            SchedulerUnavailableError: nothing was learned.
        """
        ...


@runtime_checkable
class Forecaster(Protocol):
    """A scheduler with a queue, which can say what would become of a batch script."""

    def forecast(self, script: str) -> Forecast:
        """Ask, without submitting anything.

        Raises:
            SchedulerUnavailableError: nothing was learned.
        """
        ...
