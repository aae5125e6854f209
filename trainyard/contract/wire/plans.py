"""Resources of plans and start estimates."""

from typing import Any, Literal

from pydantic import Field

from trainyard.contract.base import Resource, Timestamp


class ModelSize(Resource):
    """The number of elements in the parameters of a model; tied parameters count once."""

    parameters: int
    trained: int
    """Trained elements. With `lora_rank`, those of the adapters, which `parameters` includes."""


class MemoryParts(Resource):
    """The parts of the peak memory of one rank, in bytes. Their sum is the peak."""

    parameters: int = 0
    """In fp32, whole or sharded."""
    gradients: int = 0
    optimizer: int = 0
    """The optimizer's moments."""
    buckets: int = 0
    """The buckets in which `ddp` reduces gradients; with `gradient_as_bucket_view`, gradients are views of them."""
    gathered: int = 0
    """Gathered parameters of a sharded model, in the compute dtype."""
    activations: int = 0
    """Saved from forward to backward, including cast copies of weights."""
    logits: int = 0
    transient: int = 0
    """Temporary memory of an operation, such as gradients of activations and reduction buffers."""


class StrategyPlan(Resource):
    """The estimate for one strategy at the spec's number of ranks."""

    strategy: str
    micro_size: int | None = None
    """The micro-batch size of the estimate; for `auto`, the largest halving that should fit."""
    peak_bytes: int | None = None
    """Peak memory of each rank; None: the model's activations are not known."""
    state_bytes: int
    """Memory of parameters, gradients and optimizer state, without activations."""
    parts: MemoryParts | None = None
    phase: str | None = None
    """The phase of the step with the peak."""
    fits: bool | None = None
    """None: not known."""
    chosen: bool = False
    host_bytes: int
    """Host memory of each rank; a rough figure."""


class GpuMemory(Resource):
    """The memory of a GPU type that the job could get."""

    type: str | None = None
    """The scheduler's name of the type."""
    min_bytes: int | None = None
    """The smallest size in which the type is sold; None: not known."""
    max_bytes: int | None = None


class Change(Resource):
    """A change of the spec that makes it fit."""

    set: dict[str, Any]
    """Values by field path, as for `--set`."""
    message: str
    peak_bytes: int


class DiskNeed(Resource):
    """Disk space in the run directory, in bytes."""

    checkpoint_bytes: int
    """Upper bound for one checkpoint: trained parameters, optimizer moments and overhead."""
    checkpoints: int
    """The largest number of checkpoints at once, including the one being written."""
    export_bytes: int
    """Without the tokenizer's files, which are copied from the model's folder."""
    total_bytes: int


class StartEstimateResource(Resource):
    """When the scheduler would start a plan's job, had it been submitted at that time."""

    object: Literal["start_estimate"] = "start_estimate"
    id: str | None = None
    """For `GET /v1/start-estimates/{id}`; None: nothing was requested, and `message` gives the reason."""
    state: Literal["waiting", "answered"]
    created_at: Timestamp | None = None
    answered_at: Timestamp | None = None
    accepted: bool | None = None
    """Whether the scheduler would accept the job; None: no answer yet, or no clear one."""
    estimated_start: Timestamp | None = None
    message: str


class PlanResource(Resource):
    """What a spec will need. Nothing is submitted."""

    object: Literal["plan"] = "plan"
    spec: dict[str, Any]
    """The resolved spec."""
    model: ModelSize | None = None
    """None: not known; `unknown` gives the reason."""
    unknown: str | None = None
    strategies: list[StrategyPlan] = Field(default_factory=list)
    strategy: str
    """The strategy of the spec, or the one that `auto` selects."""
    strategy_reason: str
    """Why this strategy is used."""
    fits: bool | None = None
    summary: str
    """One sentence with the result and the numbers."""
    accelerator: Literal["cpu", "cuda"] = "cuda"
    """What the ranks compute on."""
    gpus: list[GpuMemory] = Field(default_factory=list)
    """The GPU types that the job could get; for local CPU ranks, each rank's share of the machine's memory."""
    changes: list[Change] = Field(default_factory=list)
    """If the spec does not fit, changes that make it fit, the cheapest first."""
    disk: DiskNeed | None = None
    script: str | None = None
    """The batch script, with placeholders for ids; None: it cannot be made, and `warnings` gives the reason."""
    warnings: list[str] = Field(default_factory=list)
    start_estimate: StartEstimateResource | None = None
    """Set if `estimate_start` was requested."""
