"""The cluster snapshot of `GET /v1/cluster`: partitions, nodes by state, GPUs by type; and the maintenance mode."""

from typing import Literal

from pydantic import Field, StrictBool

from trainyard.contract.base import (
    EXAMPLE_JOB,
    EXAMPLE_LATER,
    EXAMPLE_TIME,
    Resource,
    ShortText,
    Strict,
    Timestamp,
    example,
)


class GpuCount(Resource):
    """GPUs of a type."""

    type: str | None = None
    """Type as Slurm names it. None: GPUs without a type."""
    total: int
    free: int | None = None
    """Free GPUs on nodes that accept jobs. None: unknown."""


class NodeShape(Resource):
    """Nodes of a partition with the same GPUs."""

    nodes: int
    gpus: dict[str, int] = Field(default_factory=dict)
    """GPUs of each node by type; GPUs without a type have an empty name."""


class PartitionResource(Resource):
    """One partition."""

    name: str
    default: bool = False
    state: str = "up"
    """`up`; `down`: jobs wait; `drain`: running jobs continue, no new ones start; `inact`: neither."""
    time_limit_minutes: int | None = None
    """None: unlimited."""
    default_time_minutes: int | None = None
    """Time limit of jobs that set none. None: `time_limit_minutes`."""
    max_nodes: int | None = None
    """Maximum nodes of a job. None: unlimited."""
    groups: list[str] | None = None
    """Unix groups that may use the partition. None: all. Accounts and QOS may restrict it further."""
    nodes: dict[str, int] = Field(default_factory=dict)
    """Number of nodes by state."""
    gpus: list[GpuCount] = Field(default_factory=list)
    shapes: list[NodeShape] = Field(default_factory=list)


class AccountResource(Resource):
    """An account of Slurm's accounting that the service may use."""

    name: str
    default: bool = False
    partitions: list[str] | None = None
    """Partitions that it may use. None: all."""
    qos: list[str] = Field(default_factory=list)


class SlotCount(Resource):
    """Worker processes of the local backend."""

    total: int
    free: int


class ClusterSnapshot(Resource):
    """The cluster at a point in time. A node in several partitions counts once in `nodes` and `gpus`."""

    partitions: list[PartitionResource] = Field(default_factory=list)
    nodes: dict[str, int] = Field(default_factory=dict)
    gpus: list[GpuCount] = Field(default_factory=list)
    accounts: list[AccountResource] | None = None
    """None: Slurm has no accounting, or it is not available."""
    enforced: list[Literal["account", "qos"]] = Field(default_factory=list)
    """The kinds of values that Slurm enforces: it rejects values that are not in `accounts`."""
    slots: SlotCount | None = None
    """Local backend only."""


FaultKind = Literal["launch_failed", "prolog_failed", "not_started", "node_failure", "stalled", "reported"]
"""How a node made an attempt fail. `reported`: a worker named the node in its error. Only the first three, of several
jobs, exclude a node."""


class NodeFaultResource(Resource):
    """An attempt that did not start on a node."""

    job_id: str = Field(examples=[EXAMPLE_JOB])
    attempt: int
    """The number of the attempt."""
    kind: FaultKind
    message: str = Field(examples=["Slurm: FAILED, exit code 0:53"])
    """The report of Slurm or the worker."""
    created_at: Timestamp


class ExcludedNodeResource(Resource):
    """A node that new attempts of all jobs avoid, because attempts of several jobs did not start there."""

    node: str = Field(examples=["node2"])
    partitions: list[str] = Field(examples=[["gpu"]])
    """Partitions in which it is excluded. At most a quarter of the nodes of a partition is excluded."""
    since: Timestamp
    until: Timestamp = Field(examples=[EXAMPLE_LATER])
    """Half an hour after the last fault."""
    jobs: int
    """Number of jobs that did not start there."""
    cause: str = Field(examples=["Slurm could not launch jobs there"])
    faults: list[NodeFaultResource] = Field(default_factory=list)
    """The last faults, of the jobs that the caller may see."""
    drain_command: str = Field(examples=["scontrol update nodename=node2 state=drain reason='2 jobs did not start'"])
    """The command that takes the node out of service in Slurm."""


class ClusterResource(ClusterSnapshot):
    """The newest snapshot; reading it does not query the scheduler."""

    model_config = example(
        partitions=[
            {
                "name": "gpu",
                "default": True,
                "state": "up",
                "time_limit_minutes": 1440,
                "nodes": {"idle": 2},
                "gpus": [{"type": "h100", "total": 8, "free": 5}],
                "shapes": [{"nodes": 2, "gpus": {"h100": 4}}],
            }
        ],
        nodes={"idle": 2},
        gpus=[{"type": "h100", "total": 8, "free": 5}],
    )

    object: Literal["cluster"] = "cluster"
    backend: str = Field(examples=["slurm"])
    taken_at: Timestamp | None = Field(default=None, examples=[EXAMPLE_TIME])
    """None: the scheduler has not responded yet."""
    age_seconds: float | None = Field(default=None, examples=[12.5])
    error: str | None = None
    """Why the last refresh failed."""
    excluded_nodes: list[ExcludedNodeResource] = Field(default_factory=list)
    """The nodes that new attempts avoid, newest faults first."""
    node_warning: str | None = None
    """Set if further nodes would be excluded, or if so many fail that the site is probably the cause."""


class MaintenanceRequest(Strict):
    """The body of `PUT /v1/maintenance`."""

    active: StrictBool
    message: ShortText = Field(default="", examples=["Slurm is being upgraded"])
    """Why, and for how long; shown to all users. Ignored with `active: false`."""


class MaintenanceResource(Resource):
    """The maintenance mode: while it is active, accepted jobs wait and nothing is submitted to the scheduler."""

    object: Literal["maintenance"] = "maintenance"
    active: bool
    since: Timestamp | None = Field(default=None, examples=[EXAMPLE_TIME])
    started_by: str | None = Field(default=None, examples=["anna"])
    message: str = Field(default="", examples=["Slurm is being upgraded"])
