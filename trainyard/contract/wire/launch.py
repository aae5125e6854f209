"""The launch document, `launch.json`: all that a worker needs about its attempt, except its token."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, StringConstraints, ValidationError, model_validator

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.base import Document, NonNegativeInt, PositiveInt
from trainyard.contract.spec.containers import ContainerRuntime
from trainyard.contract.spec.stored_spec import unused_fields, without_fields
from trainyard.contract.spec.training_spec import TrainingSpec

PROTOCOL = 1
"""Increased by a change of these documents, or of the reports, that an older launcher must not ignore."""

_UPDATE = "it is older than the service; install the release of the service on the nodes"

Identifier = Annotated[str, StringConstraints(max_length=256)]


class Origin(Document):
    """The checkpoint of another job from which a run starts; its files are linked into the run's `origin`."""

    job_id: Identifier
    step: NonNegativeInt
    continues: bool
    """Whether the run continues after that step, with the optimizer's state and the position in the data. Else it loads
    only the weights and starts at its first step."""
    differs: Annotated[tuple[Identifier, ...], Field(max_length=256)] = ()
    """The differing fields that change the updates. If empty, a run that continues makes the same updates as the source
    would."""
    layout_differs: Annotated[tuple[Identifier, ...], Field(max_length=256)] = ()
    """The differing fields of the layout, such as `gpus`, if the run continues. Ranks and micro-batches are then added
    in another order, so that its numbers agree with the source's up to rounding, not to the last digit."""


class CurrentAttempt(Document):
    """`current.json`: the attempt that may write to the run directory. Replaced before each submission."""

    attempt_id: Identifier
    attempt: PositiveInt
    execution: PositiveInt
    """The attempt's first execution. A later attempt has a higher number."""


class LaunchDocument(Document):
    """Written by the service to the attempt's folder before submission; read by every launcher and rank."""

    protocol: PositiveInt = PROTOCOL
    """A launcher that knows only lower protocols does not start."""
    job_id: Identifier
    attempt_id: Identifier
    attempt: PositiveInt
    """Number of the attempt within the job."""
    tag: Identifier
    """The name of the attempt in the scheduler."""
    service_url: Annotated[str, StringConstraints(max_length=2000)]
    """Where workers reach the service."""
    public_url: Annotated[str, StringConstraints(max_length=2000)] = ""
    """Where users open its pages; empty: at `service_url`."""
    execution: PositiveInt
    """The first execution of this attempt. torchrun's n-th in-place restart is `execution + n`; the service leaves
    `max_restarts` numbers free before the next attempt's."""
    max_restarts: NonNegativeInt
    origin: Origin | None = None
    first_execution: PositiveInt = 1
    """Checkpoints of lower executions precede a retry from scratch and are removed."""
    checkpoint_step: NonNegativeInt | None = None
    """Step of the run's newest checkpoint, as far as the service knows. If no valid checkpoint is left, the run is
    refused: it does not start again from the beginning by itself."""
    pause_at_step: PositiveInt | None = None
    """The step after which the ranks save a checkpoint and end, if it is before the last step. The run continues from
    there in a later attempt."""
    nodes: PositiveInt = 1
    ranks_per_node: PositiveInt
    accelerator: Literal["cpu", "cuda"] = "cpu"
    """`cuda`: each rank has a GPU."""
    host_suffix: Identifier = ""
    """With several nodes: suffix of a node's name under which the other nodes reach it."""
    network_interface: Identifier = ""
    """With several nodes: the interface for gloo and nccl. Empty: they choose it."""
    heartbeat_seconds: PositiveInt = 10
    settle_seconds: NonNegativeInt = 0
    """How long the first node waits between its claim and the start of the ranks. The preceding attempt left no exit
    record, so its processes may live on; in this time they notice that they were superseded, and end."""
    roots: AllowedRoots = UNRESTRICTED_ROOTS
    """Where the models and data of the spec may be."""
    container_runtime: ContainerRuntime | None = None
    """The program that starts the container of the spec."""
    site_setup: Annotated[str, StringConstraints(max_length=4096)] = ""
    """A file of the administrator that each node sources before the ranks start. Empty: none."""
    modules_init: Annotated[str, StringConstraints(max_length=4096)] = ""
    """The file that defines the command `module` in bash. Empty: the node searches for it."""
    umask: Annotated[int, Field(ge=0, le=0o777)] = 0o077
    """The umask of files and folders of the run."""
    log_bytes: PositiveInt = 1024**3
    """Maximum disk use of a rank's log; older output is dropped."""
    time_limit_minutes: PositiveInt | None = None
    """The requested time limit."""
    partition_limit_minutes: PositiveInt | None = None
    """The partition's default time limit, if known."""
    lead_seconds: PositiveInt = 180
    """Seconds between the request to save and the time limit, if the limit is long enough."""
    excluded_nodes: Annotated[tuple[Identifier, ...], Field(max_length=1000)] = ()
    """Nodes on which earlier attempts of this job, or of several jobs, failed; they are excluded from this attempt."""
    spec: TrainingSpec
    """The resolved spec."""

    @model_validator(mode="wrap")
    @classmethod
    def _of_another_release(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuse a later protocol, and leave out fields of a later spec that the job does not use."""
        if not isinstance(values, dict):
            return handler(values)
        protocol = values.get("protocol", PROTOCOL)
        if isinstance(protocol, int) and protocol > PROTOCOL:
            raise ValueError(f"launch.json is of protocol {protocol}, but this worker knows {PROTOCOL}: {_UPDATE}")
        try:
            return handler(values)
        except ValidationError as error:
            unused = unused_fields(error)
            if not unused:
                raise
        return handler(without_fields(values, unused))

    @property
    def processes_per_node(self) -> int:
        """Number of processes that torchrun starts on each node: 1 for `dp` and for a program that is started once per
        node or job, else the number of ranks on the node."""
        return 1 if self.spec.has_one_process_per_node else self.ranks_per_node

    @property
    def is_distributed(self) -> bool:
        """Whether the processes get torchrun's variables."""
        start = self.spec.launch
        if start is None or start.distributed is None:
            return not self.spec.runs_command or self.nodes * self.processes_per_node > 1
        return start.distributed

    @property
    def limit_minutes(self) -> int | None:
        """The effective time limit. None: no limit, or unknown."""
        return self.time_limit_minutes or self.partition_limit_minutes

    @property
    def lead(self) -> float:
        """Seconds before the time limit at which the ranks are requested to save."""
        return self.lead_of((self.limit_minutes or 1e9) * 60.0)

    def lead_of(self, limit_seconds: float) -> float:
        """Return the lead for another time limit in seconds."""
        warning = self.spec.restart.signal
        if warning is not None and warning.lead_minutes is not None:
            # At least half of the time is left for training, also where the limit was not known at submission.
            return min(warning.lead_minutes * 60.0, limit_seconds / 2.0)
        return min(float(self.lead_seconds), max(15.0, limit_seconds / 10.0))
