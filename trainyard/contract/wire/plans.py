"""What `POST /v1/plans` answers: what a spec will need, whether it fits, and what would be submitted."""

from typing import Any, Literal

from pydantic import Field

from trainyard.contract.base import Resource, Timestamp


class ModelSize(Resource):
    """Elements of all of its parameters; tied ones count once."""

    parameters: int
    trained: int
    """Those that are trained: with `lora_rank` the adapters, which `parameters` counts too."""


class MemoryParts(Resource):
    """Bytes on one rank at the fullest moment of an update. They add up to the peak."""

    parameters: int = 0
    """In fp32; sharded or whole."""
    gradients: int = 0
    optimizer: int = 0
    """Its moments."""
    buckets: int = 0
    """Where `ddp` sums gradients; with `gradient_as_bucket_view` they are the gradients."""
    gathered: int = 0
    """Whole parameters of a sharded model, in the type that is computed in."""
    activations: int = 0
    """Kept from forward to backward, with cast copies of weights."""
    logits: int = 0
    transient: int = 0
    """What an operation makes on the way: gradients of values, buffers that are reduced."""


class StrategyPlan(Resource):
    """One strategy at the asked number of ranks."""

    strategy: str
    micro_size: int | None = None
    """Examples at once for which this is; where the spec says `auto`, the largest halving that should fit."""
    peak_bytes: int | None = None
    """On each rank; None: the model's activations are not known."""
    state_bytes: int
    """Parameters, gradients and optimizer alone: the least that it takes."""
    parts: MemoryParts | None = None
    moment: str | None = None
    """When the peak is."""
    fits: bool | None = None
    """None: not known."""
    chosen: bool = False
    host_bytes: int
    """Of the host's memory, for each rank; a rough figure."""


class GpuMemory(Resource):
    """Of one GPU that the job could get."""

    type: str | None = None
    """As the scheduler names it."""
    least_bytes: int | None = None
    """Where a type is sold with several sizes, of the smallest; None: not known."""
    most_bytes: int | None = None


class Change(Resource):
    """One way to make it fit."""

    set: dict[str, Any]
    """Fields by path, as `--set` takes them."""
    message: str
    peak_bytes: int


class DiskNeed(Resource):
    """Bytes in the run directory."""

    checkpoint_bytes: int
    """Of one, at most: what is trained, the optimizer's moments, and what is around them."""
    checkpoints: int
    """Kept at most at once, the one being written included."""
    export_bytes: int
    """Its tokenizer's files, copied from the model's folder, come on top."""
    total_bytes: int


class AskResource(Resource):
    """What the scheduler says would become of a plan, were it submitted at that moment."""

    object: Literal["ask"] = "ask"
    id: str | None = None
    """For `GET /v1/asks/{id}`; None: there was nobody to ask, `message` has why."""
    state: Literal["waiting", "answered"]
    created_at: Timestamp | None = None
    answered_at: Timestamp | None = None
    accepted: bool | None = None
    """None: not answered yet, or not clearly."""
    estimated_start: Timestamp | None = None
    message: str


class PlanResource(Resource):
    """What a spec will need. Nothing is submitted, and the scheduler is asked only on request."""

    object: Literal["plan"] = "plan"
    spec: dict[str, Any]
    """Resolved: as it would be run."""
    model: ModelSize | None = None
    """None: not known before it is built; `unknown` says why."""
    unknown: str | None = None
    strategies: list[StrategyPlan] = Field(default_factory=list)
    strategy: str
    """The spec's, or what `auto` takes."""
    why: str
    """Of the strategy."""
    fits: bool | None = None
    verdict: str
    """The same in words, with the numbers."""
    accelerator: Literal["cpu", "cuda"] = "cuda"
    """What the ranks compute on."""
    gpus: list[GpuMemory] = Field(default_factory=list)
    """Without GPUs, on the local backend: each rank's share of the machine's memory, as one of that name."""
    changes: list[Change] = Field(default_factory=list)
    """Where it does not fit: what would, the cheapest first."""
    disk: DiskNeed | None = None
    script: str | None = None
    """What would be submitted, with made-up ids; None: what is submitted cannot be said, `warnings` has why."""
    warnings: list[str] = Field(default_factory=list)
    ask: AskResource | None = None
    """What the scheduler says, where it was to be asked."""
