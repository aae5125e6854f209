"""launch.json: everything a worker is told about its attempt besides its token."""

from typing import Literal

from trainyard.contract.base import NonNegativeInt, PositiveInt, Strict
from trainyard.contract.spec.training_spec import TrainingSpec


class Origin(Strict):
    """The checkpoint of another job from which a run starts; its files are linked into the run's `origin`."""

    job_id: str
    step: NonNegativeInt
    continues: bool
    """The specs make the same updates, so the run goes on after that step: optimizer, schedule and data too. Else it
    takes the weights alone and begins at its own first step."""
    differs: tuple[str, ...] = ()
    """Why it does not continue: the fields that differ."""


class LaunchDocument(Strict):
    """Written by the service into the attempt's folder before it submits; read by every node's launcher and rank."""

    job_id: str
    attempt_id: str
    attempt: PositiveInt
    """Number within the job."""
    tag: str
    """The scheduler's name of the attempt."""
    service_url: str
    execution: PositiveInt
    """The first execution of this attempt. torchrun's n-th in-place restart is `execution + n`; the service leaves
    `max_restarts` numbers free before the next attempt's."""
    max_restarts: NonNegativeInt
    origin: Origin | None = None
    first_execution: PositiveInt = 1
    """Checkpoints of lower executions are from before a retry from scratch: they are removed, not gone on from."""
    nodes: PositiveInt = 1
    ranks_per_node: PositiveInt
    accelerator: Literal["cpu", "cuda"] = "cpu"
    """`cuda`: on Slurm, each rank is given a GPU."""
    host_suffix: str = ""
    """Several nodes: appended to a node's name to get the one under which the other nodes reach it."""
    network_interface: str = ""
    """Several nodes: through which gloo and nccl talk; they choose where it is empty."""
    heartbeat_seconds: PositiveInt = 10
    log_bytes: PositiveInt = 1024**3
    """What the file of one rank's log may take on disk; its beginning is dropped for it."""
    time_limit_minutes: PositiveInt | None = None
    """What the scheduler is asked for."""
    partition_limit_minutes: PositiveInt | None = None
    """What the partition gives where nothing is asked for, as far as is known."""
    lead_seconds: PositiveInt = 180
    """How long before the time limit the ranks are asked to save, where the limit leaves room for it."""
    excluded_nodes: tuple[str, ...] = ()
    """Nodes that failed earlier attempts, by the scheduler's names; the scheduler is asked for others."""
    spec: TrainingSpec
    """Resolved; the attempt's own copy."""

    @property
    def processes_per_node(self) -> int:
        """How many torchrun starts on each node: one a rank, but `dp` drives all its GPUs from one process."""
        return 1 if self.spec.strategy == "dp" else self.ranks_per_node

    @property
    def limit_minutes(self) -> int | None:
        """The time limit that holds; None: none, or not known."""
        return self.time_limit_minutes or self.partition_limit_minutes

    @property
    def lead(self) -> float:
        """Seconds before the time limit at which the ranks are asked to save."""
        return self.lead_of((self.limit_minutes or 1e9) * 60.0)

    def lead_of(self, limit_seconds: float) -> float:
        """The same for another limit."""
        return min(float(self.lead_seconds), max(15.0, limit_seconds / 10.0))
