"""The sections of a training spec: model, data, optimizer, and the policies around them."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from trainyard.contract.base import (
    ConstraintName,
    Float,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SchedulerName,
    ShortText,
    Strict,
)
from trainyard.contract.validation_messages import VARIABLE_PATTERN

Path = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]


class HfModel(Strict):
    """A Hugging Face model in a local folder of safetensors."""

    source: Literal["hf"] = "hf"
    path: Path
    """The folder; it must lie under one of the service's allowed roots."""


class GptModel(Strict):
    """Our decoder-only transformer: pre-norm blocks, learned positions, tied embeddings."""

    source: Literal["builtin"] = "builtin"
    name: Literal["gpt"] = "gpt"
    layers: PositiveInt = 4
    """Blocks."""
    width: PositiveInt = 128
    """Of the residual stream; a multiple of `heads`."""
    heads: PositiveInt = 4
    """Of attention."""
    context: PositiveInt = 128
    """Tokens per example."""
    vocab: PositiveInt = 256
    """At least 256: tokens are bytes."""
    dropout: Fraction = 0.0
    tied: bool = True
    """One weight for embedding and output head."""


class ConvnetModel(Strict):
    """Our small convolutional classifier for square, single-channel images. No batch statistics."""

    source: Literal["builtin"] = "builtin"
    name: Literal["convnet"] = "convnet"
    channels: PositiveInt = 32
    """Of the first two layers; the third has twice as many."""
    classes: PositiveInt = 10
    """Outputs."""
    dropout: Fraction = 0.0


class MlpModel(Strict):
    """A plain multi-layer perceptron with biases. `sizes` from input to output."""

    source: Literal["builtin"] = "builtin"
    name: Literal["mlp"] = "mlp"
    sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=2, max_length=64)] = (2, 2, 2, 3)
    """Width of each layer, input and output included."""
    activation: Literal["tanh", "relu", "none"] = "tanh"
    """Between the layers."""


def _model_tag(value: Any) -> str | None:
    read: Callable[[str], Any] = value.get if isinstance(value, dict) else lambda key: getattr(value, key, None)
    if read("source") == "hf":
        return "hf"
    name = read("name")
    return name if isinstance(name, str) else None


Model = Annotated[
    Annotated[HfModel, Tag("hf")]
    | Annotated[GptModel, Tag("gpt")]
    | Annotated[ConvnetModel, Tag("convnet")]
    | Annotated[MlpModel, Tag("mlp")],
    Discriminator(
        _model_tag,
        custom_error_type="model",
        custom_error_message="must be {source: hf, path: ...} or {source: builtin, name: gpt | convnet | mlp, ...}",
    ),
]


class BuiltinData(Strict):
    """Real data that needs no download: scikit-learn's digits, Python's own standard library, a small regression."""

    source: Literal["builtin"] = "builtin"
    name: Literal["digits", "stdlib", "parity"]
    """`digits`: 1,797 images of 8 x 8. `stdlib`: Python's standard library as bytes. `parity`: made up."""
    eval_fraction: Annotated[Float, Field(ge=0, lt=1)] = 0.2
    """The share held out for evaluation; 0 turns evaluation off."""
    examples: PositiveInt = 120
    """How many examples `parity` has; the others have what they have."""
    shuffle: bool = True
    """Draw each epoch's order from the seed; else the order of the data."""


class JsonlData(Strict):
    """One JSON object a line: text, prompt and completion, or chat messages."""

    source: Literal["jsonl"] = "jsonl"
    path: Path
    """The file; it must lie under one of the service's allowed roots."""
    eval_path: Path | None = None
    """Examples to evaluate on; absent: no evaluation."""
    format: Literal["auto", "text", "completion", "chat"] = "auto"
    """`text`: {text}; `completion`: {prompt, completion}; `chat`: {messages: [{role, content}]}. `auto`: as the first
    line. Of a completion and a chat only what the model is to answer is learned."""
    packing: bool = True
    """Put several examples into one row, where they do not see each other. A row is what `batch` counts."""
    max_length: PositiveInt | None = None
    """Tokens of a row at most; absent: as many as the model sees, up to 2048."""
    shuffle: bool = True
    """Draw each epoch's order from the seed; else the order of the file."""


Data = Annotated[BuiltinData | JsonlData, Field(discriminator="source")]


class Batch(Strict):
    """How many examples make one update. The global batch is the contract: it never depends on the rank count."""

    size: PositiveInt = 32
    """Examples in one update, over all ranks."""
    micro_size: PositiveInt | Literal["auto"] = "auto"
    """Examples in one forward pass on one rank; accumulation follows."""
    last: Literal["keep", "drop", "pad"] = "keep"
    """What becomes of an epoch's incomplete last batch: trained as is, left out, or filled from the epoch's start."""


class Optimizer(Strict):
    """The update rule."""

    name: Literal["sgd", "adam", "adamw"] = "adamw"
    lr: PositiveFloat = 1e-3
    """The peak of the schedule. It needs no change when the number of ranks does."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled for `adamw`; added to the gradient for `sgd` and `adam`."""
    momentum: Fraction = 0.0
    """SGD only."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """`adam` and `adamw` only."""
    eps: NonNegativeFloat = 1e-8
    """`adam` and `adamw` only."""
    clip_norm: PositiveFloat | None = None
    """Largest 2-norm of the whole gradient; absent: no clipping."""


class Schedule(Strict):
    """The learning rate over the steps: linear warm-up from zero, then constant, or down to `final` times the rate."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Updates over which the rate rises from zero."""
    final: Fraction = 0.0
    """What the rate ends at, as a part of its peak."""


class Fsdp(Strict):
    """Sharded data parallelism."""

    wrap: Literal["naive", "layer", "size"] = "layer"
    """Which parameters are gathered together: all, those of a layer, or of a module of at least `min_params`."""
    min_params: PositiveInt | None = None
    """For wrap `size`."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in the host's memory; GPUs only."""
    replicas: PositiveInt = 1
    """For `hsdp`: copies of the model, each sharded over its part of the ranks."""
    prefetch: NonNegativeInt = 0
    """How many units ahead are gathered while one computes; 0 leaves it to torch, which gathers one."""


class Ddp(Strict):
    """Replicated data parallelism."""

    find_unused_parameters: bool = False
    """For models whose forward does not use every parameter."""
    static_graph: bool = False
    """The same parameters are used in every step: torch may plan for it."""
    bucket_cap_mb: PositiveInt = 25
    """Gradients are summed in buckets of this size, while the backward goes on."""
    gradient_as_bucket_view: bool = True
    """Gradients live in the buckets that are communicated, so they are held once and not twice."""
    sync_batchnorm: bool = False
    """Batch statistics over all ranks' examples instead of each rank's own; GPUs only."""


def _targets_tag(value: Any) -> str:
    return "auto" if value == "auto" else "names"


Targets = Annotated[
    Annotated[Literal["auto"], Tag("auto")] | Annotated[tuple[ShortText, ...], Field(min_length=1), Tag("names")],
    Discriminator(_targets_tag),
]


class Lora(Strict):
    """Low-rank adapters; used when `lora_rank` is set. A layer computes W0 x + (alpha / lora_rank) B A x."""

    alpha: PositiveFloat = 32.0
    """Divided by `lora_rank`: with alpha equal to the rank a layer computes W0 + B A."""
    dropout: Fraction = 0.0
    """In front of the adapters."""
    targets: Targets = "auto"
    """Layers by name, last part of a name, or glob pattern of either; `auto`: every layer but the output's."""
    merge: bool = False
    """Export the whole model with the adapters added to its weights, instead of the adapters alone."""


class Evaluation(Strict):
    """Evaluation on held-out data."""

    every_steps: PositiveInt | None = None
    """Absent: once, at the end."""


class KeepBest(Strict):
    """Keep the checkpoint with the best value of a metric."""

    metric: ShortText = "eval/loss"
    """One of the evaluation's, or `train/loss`."""
    mode: Literal["min", "max"] = "min"
    """Whether less or more is better."""


class Checkpoint(Strict):
    """When checkpoints are written and which ones stay. One is always written at the end."""

    every_steps: PositiveInt | None = None
    """Absent: only at the end, and whenever the run is asked to stop."""
    keep_last: PositiveInt = 2
    """How many of the newest stay."""
    keep_best: KeepBest | None = None
    """One more that stays: the best by a metric."""
    asynchronous: Annotated[bool, Field(alias="async")] = True
    """Write beside the training, which waits only for a copy."""
    export: bool = True
    """Write what was trained as safetensors to the run's `export` folder at the end: a model, or adapters."""


class Amp(Strict):
    """Loss scaling; fp16 only."""

    init_scale: PositiveFloat = 65536.0
    """The first loss scale."""
    growth_interval: PositiveInt = 2000
    """Updates without an infinity after which the scale doubles."""


class Resources(Strict):
    """What is asked of the scheduler."""

    partition: SchedulerName | None = None
    """Absent: the cluster's default."""
    gpus_per_node: PositiveInt | None = None
    """Ranks on a node; it divides `gpus`."""
    gpu_type: SchedulerName | None = None
    """As Slurm names it."""
    cpus_per_gpu: PositiveInt | None = None
    """Cores for each rank."""
    memory_gb_per_gpu: PositiveInt | None = None
    """Host memory for each rank, in GiB."""
    time_limit_minutes: PositiveInt | None = None
    """Of one attempt; see `restart.on_time_limit`."""
    account: SchedulerName | None = None
    """Whom it is charged to."""
    qos: SchedulerName | None = None
    constraint: ConstraintName | None = None
    """Features that the nodes must have, as sbatch takes them."""
    exclude: SchedulerName | None = None
    """Nodes not to use."""


EnvironmentName = Annotated[str, StringConstraints(max_length=128, pattern=VARIABLE_PATTERN)]


class Environment(Strict):
    """What the worker finds around it on the nodes."""

    variables: dict[EnvironmentName, ShortText] = Field(default_factory=dict, max_length=64)
    """Set for the ranks."""


class Restart(Strict):
    """What happens after a failure that is not the end."""

    max_retries: Annotated[NonNegativeInt, Field(le=100)] = 2
    """Errors of the program that are forgiven, in all; preemptions and node failures do not count."""
    on_time_limit: Literal["continue", "fail"] = "continue"
    """`continue`: save, give the place back and go on as a next attempt. `fail`: end as `time_limit`."""


class Health(Strict):
    """When a run that does not die by itself is ended."""

    stall_timeout_minutes: PositiveFloat | None = None
    """A run in which no rank makes progress for so long is ended as `stalled`; start-up and export get ten more.
    Absent: 15, and a `script`, whose pace only its author knows, is not watched."""
    on_nan: Literal["stop", "skip", "ignore"] = "stop"
    """A loss or gradient that is not finite: `stop` ends the run, `skip` leaves the update out, `ignore` goes on."""


class Profile(Strict):
    """A torch profiler trace of a few steps, in the run's `artifacts/profile`."""

    start_step: PositiveInt
    """The first update that is traced, counted from 1."""
    steps: PositiveInt = 3
    """How many."""
    ranks: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (0,)
    """Which ranks write one."""
    nsys: bool = False
    """Have NVIDIA's `nsys` record them instead; the nodes must have it."""


class Log(Strict):
    """How often points are written."""

    every_steps: PositiveInt = 10
    """Updates between two points; the first and the last always have one."""
