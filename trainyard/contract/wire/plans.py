"""The response of `POST /v1/plans`: the resources that a spec will need, and the script that would be submitted."""

from typing import Any, Literal

from pydantic import Field

from trainyard.contract.base import EXAMPLE_LATER, EXAMPLE_TIME, Resource, Timestamp, example


class ModelSize(Resource):
    """Number of parameters; tied parameters count once."""

    parameters: int
    trained: int
    """Trained parameters; with `lora_rank` the adapters, which `parameters` includes."""


class MemoryParts(Resource):
    """Bytes on a rank in the phase with the peak memory; they add up to the peak."""

    parameters: int = 0
    """In fp32; the rank's shard if the model is sharded."""
    gradients: int = 0
    optimizer: int = 0
    """State of the optimizer."""
    buckets: int = 0
    """Communication buckets of `ddp`; with `gradient_as_bucket_view` they also hold the gradients."""
    gathered: int = 0
    """Gathered parameters of a sharded model, in the compute dtype."""
    activations: int = 0
    """Tensors saved for the backward pass, and casts of weights."""
    logits: int = 0
    transient: int = 0
    """Temporary tensors: gradients of activations and reduction buffers."""


class StrategyPlan(Resource):
    """The needs of a strategy with the spec's number of ranks."""

    strategy: str
    micro_size: int | None = None
    """The micro-batch size of this estimate; for `auto` the largest halving of the batch that should fit."""
    peak_bytes: int | None = None
    """Peak memory of each rank. None: the activation memory is unknown."""
    state_bytes: int
    """Memory for parameters, gradients and optimizer state: a lower bound."""
    parts: MemoryParts | None = None
    peak_phase: str | None = None
    """The phase of a step with the peak memory."""
    fits: bool | None = None
    """None: unknown."""
    chosen: bool = False
    host_bytes: int
    """Approximate host memory for each rank."""


class GpuMemory(Resource):
    """Memory of a GPU type that the job could use."""

    type: str | None = None
    """Name of the type in the scheduler."""
    min_bytes: int | None = None
    """Memory of the smallest variant of the type. None: unknown."""
    max_bytes: int | None = None


class Change(Resource):
    """A change of the spec that makes it fit."""

    set: dict[str, Any]
    """Fields by path, as for `--set`."""
    message: str
    peak_bytes: int


class DiskNeed(Resource):
    """Disk space in the run directory, in bytes."""

    checkpoint_bytes: int
    """Maximum size of a checkpoint: trained parameters, optimizer state and metadata."""
    checkpoints: int
    """Maximum number at any time, including an unfinished checkpoint."""
    export_bytes: int
    """Size of the export without the tokenizer's files."""
    total_bytes: int


class StartEstimateResource(Resource):
    """The start time that the scheduler estimates for a plan submitted now."""

    model_config = example(
        message="Slurm would accept the job and start it at 2026-01-01 12:05:00 UTC on node1 in partition gpu."
    )

    object: Literal["start_estimate"] = "start_estimate"
    id: str | None = Field(default=None, examples=["est_01kdvdna00az9cxjnszk8v8abh"])
    """For `GET /v1/start-estimates/{id}`; None: nothing was requested, and `message` gives the reason."""
    state: Literal["waiting", "answered"] = Field(examples=["answered"])
    created_at: Timestamp | None = Field(default=None, examples=[EXAMPLE_TIME])
    answered_at: Timestamp | None = Field(default=None, examples=[EXAMPLE_TIME])
    accepted: bool | None = Field(default=None, examples=[True])
    """Whether the scheduler would accept the job; None: no answer yet, or no clear answer."""
    estimated_start: Timestamp | None = Field(default=None, examples=[EXAMPLE_LATER])
    message: str


class PlanResource(Resource):
    """The resources that a spec will need. Nothing is submitted."""

    model_config = example(
        strategies=[
            {
                "strategy": "ddp",
                "micro_size": 4,
                "peak_bytes": 6442450944,
                "state_bytes": 4294967296,
                "parts": {
                    "parameters": 1073741824,
                    "gradients": 1073741824,
                    "optimizer": 2147483648,
                    "activations": 1073741824,
                    "logits": 1073741824,
                },
                "peak_phase": "backward",
                "fits": True,
                "chosen": True,
                "host_bytes": 1073741824,
            }
        ],
        gpus=[{"type": "h100", "min_bytes": 85899345920, "max_bytes": 85899345920}],
        disk={"checkpoint_bytes": 12000, "checkpoints": 3, "export_bytes": 4000, "total_bytes": 40000},
    )

    object: Literal["plan"] = "plan"
    spec: dict[str, Any]
    """The resolved spec."""
    model: ModelSize | None = Field(default=None, examples=[{"parameters": 1234567, "trained": 1234567}])
    """None: unknown before the model is built; see `unknown`."""
    unknown: str | None = None
    """Why the size of the model is unknown."""
    strategies: list[StrategyPlan] = Field(default_factory=list)
    strategy: str = Field(examples=["ddp"])
    """The strategy of the spec, or the selection of `auto`."""
    strategy_reason: str = Field(examples=["set in the spec"])
    """Why this strategy is used."""
    fits: bool | None = Field(default=None, examples=[True])
    summary: str = Field(examples=["fits: needs about 6 GiB of 80 GiB per GPU"])
    """The result as a sentence."""
    accelerator: Literal["cpu", "cuda"] = Field(default="cuda", examples=["cuda"])
    """The accelerator of the ranks."""
    gpus: list[GpuMemory] = Field(default_factory=list)
    """The possible GPU types. On a local backend without GPUs: each rank's share of the machine's memory."""
    changes: list[Change] = Field(default_factory=list)
    """If the spec does not fit: changes that make it fit, the cheapest first."""
    disk: DiskNeed | None = None
    script: str | None = Field(default=None, examples=["#!/bin/bash\n#SBATCH --nodes=1\n"])
    """The batch script with placeholder ids. None: it cannot be determined; see `warnings`."""
    warnings: list[str] = Field(default_factory=list)
    start_estimate: StartEstimateResource | None = Field(default=None, examples=[{}])
    """Set if `estimate_start` was requested."""
