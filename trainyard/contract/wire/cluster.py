"""What there is to run on, as `GET /v1/cluster` answers: partitions, nodes by state, GPUs by type."""

from typing import Literal

from pydantic import Field

from trainyard.contract.base import Resource, Timestamp


class GpuCount(Resource):
    """GPUs of one type."""

    type: str | None = None
    """As Slurm names it; None where it gives them no type."""
    total: int
    free: int | None = None
    """On nodes that take jobs now; None where the scheduler does not tell."""


class NodeShape(Resource):
    """Nodes of a partition that have the same GPUs."""

    nodes: int
    gpus: dict[str, int] = Field(default_factory=dict)
    """By type, on each node; the empty name is that of GPUs without a type."""


class PartitionResource(Resource):
    """One partition."""

    name: str
    default: bool = False
    state: str = "up"
    """`up`; `down`: jobs wait; `drain`: what is there runs on, no new ones; `inact`: neither."""
    time_limit_minutes: int | None = None
    """None: no limit."""
    default_time_minutes: int | None = None
    """Of jobs that name no limit; None: the limit itself."""
    max_nodes: int | None = None
    """That one job may take; None: no limit."""
    groups: list[str] | None = None
    """Unix groups that may use it; None: all. Which accounts and qos may is another question."""
    nodes: dict[str, int] = Field(default_factory=dict)
    """By state."""
    gpus: list[GpuCount] = Field(default_factory=list)
    shapes: list[NodeShape] = Field(default_factory=list)


class AccountResource(Resource):
    """An account of Slurm's accounting that the service may use."""

    name: str
    default: bool = False
    partitions: list[str] | None = None
    """Where it may be used; None: everywhere."""
    qos: list[str] = Field(default_factory=list)


class SlotCount(Resource):
    """Worker processes at once, on the local backend."""

    total: int
    free: int


class ClusterSnapshot(Resource):
    """What the scheduler said at one time. A node that is in several partitions counts once in `nodes` and `gpus`."""

    partitions: list[PartitionResource] = Field(default_factory=list)
    nodes: dict[str, int] = Field(default_factory=dict)
    gpus: list[GpuCount] = Field(default_factory=list)
    accounts: list[AccountResource] | None = None
    """None: Slurm has no accounting, or it does not answer."""
    enforced: list[Literal["account", "qos"]] = Field(default_factory=list)
    """Which of the two Slurm refuses where it is not among `accounts`."""
    slots: SlotCount | None = None
    """On the local backend."""


class ClusterResource(ClusterSnapshot):
    """The newest snapshot. Reading it costs the scheduler nothing."""

    object: Literal["cluster"] = "cluster"
    backend: str
    taken_at: Timestamp | None = None
    """None: the scheduler has not answered yet."""
    age_seconds: float | None = None
    error: str | None = None
    """Why the last attempt to take a newer one failed."""
