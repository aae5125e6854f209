"""The sections of a training spec: model, data, optimizer, and the policies around them."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, field_validator

from trainyard.contract.base import (
    CONTROL_FREE_PATTERN,
    ConstraintName,
    Float,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    Path,
    PositiveFloat,
    PositiveInt,
    SchedulerName,
    ShortText,
    Strict,
    one_of,
)
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.decoders import GptModel, LlamaModel
from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.objectives import Samples
from trainyard.contract.spec.sbatch_options import OptionName, OptionValue, option_problems
from trainyard.contract.spec.text_data import TextFiles, TextMixture, UploadedFiles
from trainyard.contract.spec.user_code import StartFolder

MAX_GROUP = 4096


class Embedding(Strict):
    """How task `text_embedding` makes vectors of texts, and compares them."""

    pooling: Literal["mean", "first", "last"] = "mean"
    """The vector of a text: the mean over its tokens, or the first (CLS) or last token; scaled to length 1."""
    temperature: PositiveFloat = 0.05
    """Divisor of the cosine similarities in the loss."""
    group_size: Annotated[int, Field(ge=2, le=MAX_GROUP, strict=True)] = 8
    """Pairs that are compared with each other, drawn anew in each epoch: the positives of the others are the negatives
    of an anchor. `batch` counts groups."""


class HfModel(Strict):
    """A Hugging Face model in a local folder of safetensors."""

    source: Literal["hf"] = "hf"
    path: Path
    """The folder; it must be under an allowed root of the service."""


class ConvnetModel(Strict):
    """The builtin convolutional classifier for square, single-channel images, without batch normalization."""

    source: Literal["builtin"] = "builtin"
    name: Literal["convnet"] = "convnet"
    channels: PositiveInt = 32
    """Channels of the first two layers; the third has twice as many."""
    classes: PositiveInt = 10
    """Number of outputs."""
    dropout: Fraction = 0.0
    """Probability of dropout."""


class MlpModel(Strict):
    """A multi-layer perceptron with biases."""

    source: Literal["builtin"] = "builtin"
    name: Literal["mlp"] = "mlp"
    sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=2, max_length=64)] = (2, 2, 2, 3)
    """Width of each layer from input to output, both included."""
    activation: Literal["tanh", "relu", "none"] = "tanh"
    """Activation function between the layers."""


def _model_tag(value: Any) -> str | None:
    read: Callable[[str], Any] = value.get if isinstance(value, dict) else lambda key: getattr(value, key, None)
    if read("source") == "hf":
        return "hf"
    name = read("name")
    return name if isinstance(name, str) else None


Model = Annotated[
    Annotated[HfModel, Tag("hf")]
    | Annotated[GptModel, Tag("gpt")]
    | Annotated[LlamaModel, Tag("llama")]
    | Annotated[ConvnetModel, Tag("convnet")]
    | Annotated[MlpModel, Tag("mlp")],
    Discriminator(
        _model_tag,
        custom_error_type="model",
        custom_error_message="must be {source: hf, path: ...} or "
        "{source: builtin, name: gpt | llama | convnet | mlp, ...}",
    ),
]


class BuiltinData(Strict):
    """Data sets that need no download."""

    source: Literal["builtin"] = "builtin"
    name: Literal["digits", "stdlib", "parity"]
    """`digits`: scikit-learn's 1,797 images of 8 x 8 pixels. `stdlib`: Python's standard library as bytes, or for an
    objective of pairs 1,000 passages, each with its continuation unchanged and in upper case. `parity`: a synthetic
    regression."""
    eval_fraction: Annotated[Float, Field(ge=0, lt=1)] = 0.2
    """Fraction of the examples held out for evaluation; 0 disables evaluation."""
    examples: PositiveInt = 120
    """Number of examples; `parity` only."""
    shuffle: bool = True
    """Shuffle the examples in each epoch, with an order derived from `seed`."""


Data = Annotated[BuiltinData | TextFiles | TextMixture | UploadedFiles | ImageFiles, Field(discriminator="source")]


class Batch(Strict):
    """The batch size. The global batch does not depend on the number of ranks."""

    size: PositiveInt = 32
    """Examples of a step, over all ranks."""
    micro_size: Annotated[PositiveInt | Literal["auto"], one_of("a positive whole number or `auto`")] = "auto"
    """Examples of a forward pass on a rank; gradients are accumulated to `size`. `auto`: the largest number that
    fits."""
    last: Literal["keep", "drop", "pad"] = "keep"
    """Incomplete last batch of an epoch: use it (`keep`), skip it (`drop`), or fill it from its start (`pad`)."""
    loaders: Annotated[NonNegativeInt, Field(le=64)] = 0
    """Processes of each rank that prepare its batches ahead: for source `images`, and for task `custom` if examples are
    decoded as they are used."""


MAX_PATTERNS = 64
"""Patterns in a field; each is compared with every layer of the model."""

NamePattern = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=CONTROL_FREE_PATTERN)]
"""A name of layers or parameters, or a glob pattern of names."""


class Fsdp(Strict):
    """Sharded data parallelism; for the strategies `zero1`, `zero2`, `fsdp` and `hsdp`."""

    wrap: Literal["naive", "layer", "size"] = "layer"
    """Parameters that form a unit and are gathered together: all (`naive`), a layer (`layer`), or a module with at
    least `min_params` parameters (`size`)."""
    min_params: PositiveInt | None = None
    """Minimum number of parameters of a unit; required with wrap `size`."""
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type in which gradients are summed over the ranks; `bf16` halves the traffic and loses digits."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in host memory; GPUs only."""
    replicas: PositiveInt = 1
    """`hsdp` only: number of replicas of the model, each sharded over an equal part of the ranks."""
    prefetch: NonNegativeInt = 0
    """Number of units gathered ahead of the current unit. 0: the default of PyTorch, which is 1."""


class Ddp(Strict):
    """Options of `DistributedDataParallel`; for the strategy `ddp`."""

    find_unused_parameters: bool = False
    """Required if the forward pass does not use every parameter."""
    static_graph: bool = False
    """Every step uses the same parameters, which permits optimizations."""
    bucket_cap_mb: PositiveInt = 25
    """Size in MiB of the buckets in which gradients are reduced during the backward pass."""
    gradient_as_bucket_view: bool = True
    """Store gradients in the communication buckets instead of copying them, which saves memory."""
    sync_batchnorm: bool = False
    """Synchronize batch normalization over all ranks; GPUs only."""


def _targets_tag(value: Any) -> str:
    return "auto" if value == "auto" else "names"


Targets = Annotated[
    Annotated[Literal["auto"], Tag("auto")]
    | Annotated[tuple[NamePattern, ...], Field(min_length=1, max_length=MAX_PATTERNS), Tag("names")],
    Discriminator(_targets_tag),
]


class Lora(Strict):
    """Low-rank adapters; used when `lora_rank` is set. A layer computes W0 x + (alpha / lora_rank) B A x."""

    alpha: PositiveFloat = 32.0
    """Scale of the adapters, divided by `lora_rank`."""
    dropout: Fraction = 0.0
    """Probability of dropout before the adapters."""
    targets: Targets = "auto"
    """Layers to adapt: names, last parts of names, or glob patterns of either. `auto`: all except the output layer."""
    base_dtype: Literal["fp32", "bf16", "int8", "nf4"] = "fp32"
    """Type in which the frozen weights of linear layers are held; task `causal_lm` only. The weights are converted
    where they are used; `precision` remains the type of the forward and backward pass. `int8` has a scale for each row,
    `nf4` has 4 bits and quantized scales for blocks of 64 values (QLoRA). With any type except `fp32`, embeddings and
    the output layer are held in bf16."""
    rslora: bool = False
    """Scale the adapters by `alpha` divided by the square root of `lora_rank` instead (rank-stabilized LoRA,
    arXiv:2312.03732)."""
    dora: bool = False
    """Also train the norm of each column of the adapted weights (DoRA, arXiv:2402.09353)."""
    rank_pattern: dict[NamePattern, PositiveInt] = Field(default_factory=dict, max_length=MAX_PATTERNS)
    """Ranks of some layers instead of `lora_rank`, by names, last parts of names, or glob patterns of either. The first
    pattern that matches a layer counts."""
    alpha_pattern: dict[NamePattern, PositiveFloat] = Field(default_factory=dict, max_length=MAX_PATTERNS)
    """Scales of some layers instead of `alpha`, each divided by the rank of its layer; patterns as for
    `rank_pattern`."""
    modules_to_save: Annotated[tuple[NamePattern, ...], Field(max_length=MAX_PATTERNS)] = ()
    """Modules to train whole beside the adapters, such as the embeddings: names, last parts of names, or glob patterns
    of either. Their weights are part of the exported adapter."""
    adapter: Path | None = None
    """Folder of an adapter in peft's format from which the training starts. It must have the rank, the targets and the
    other properties that this spec states. Absent: new adapters."""
    merge: bool = False
    """Export the merged model instead of the adapters. The adapters are merged into the base in the form used for
    training. With a `base_dtype` other than `fp32` the merged model is in bf16."""

    def __hash__(self) -> int:
        # Mappings have no hash; equality compares them.
        return hash((self.alpha, self.targets, self.modules_to_save))


class Evaluation(Strict):
    """Evaluation on held-out data."""

    every_steps: PositiveInt | None = None
    """Steps between evaluations. Absent: once at the end."""
    first: bool = False
    """Also evaluate before the first step, for example to know the loss of a pretrained model."""
    limit: PositiveInt | None = None
    """Number of held-out examples to use of each set, from its beginning. Absent: all."""
    micro_size: PositiveInt | None = None
    """Examples that a rank evaluates at once. Absent: as many as in training."""
    samples: Samples | None = None
    """Absent: no texts are generated."""


class EarlyStopping(Strict):
    """End the run when its evaluations no longer improve. The run then completes as usual, with the final checkpoint
    and the export."""

    metric: ShortText = "eval/loss"
    """A metric of the evaluation."""
    patience: PositiveInt
    """Evaluations in a row without an improvement after which the run ends."""
    min_delta: NonNegativeFloat = 0.0
    """Difference from the best value so far that an improvement must exceed."""
    mode: Literal["min", "max"] = "min"
    """Whether a smaller or a larger value is better."""


class KeepBest(Strict):
    """Keep the checkpoint with the best value of a metric."""

    metric: ShortText = "eval/loss"
    """A metric of the evaluation, or `train/loss`."""
    mode: Literal["min", "max"] = "min"
    """Whether a smaller or a larger value is better."""


class Checkpoint(Strict):
    """When checkpoints are written, and which are kept. A checkpoint is always written at the end."""

    every_steps: PositiveInt | None = None
    """Steps between checkpoints. Absent: only at the end and on a stop request."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints to keep."""
    keep_best: KeepBest | None = None
    """Also keep the best checkpoint by a metric."""
    asynchronous: Annotated[bool, Field(alias="async")] = True
    """Write checkpoints in the background; training waits only while the state is copied."""
    memory_steps: Annotated[PositiveInt | Literal["auto"], one_of("a positive whole number or `auto`")] | None = None
    """Steps between checkpoints in the memory of the nodes, from which the ranks resume if they start again within the
    attempt. `auto`: as often as they cost at most 3 % of the time, while two of them fit in a quarter of the free
    memory. Absent: none. Not measured on GPUs."""
    export: bool = True
    """At the end, write the trained model or adapters as safetensors to the run's `export` folder."""


class Amp(Strict):
    """Loss scaling; for precision `fp16`."""

    init_scale: PositiveFloat = 65536.0
    """Initial loss scale."""
    growth_interval: PositiveInt = 2000
    """Steps without overflow after which the scale doubles."""


class Resources(Strict):
    """Resources to request from Slurm. The local backend supports only `time_limit_minutes`."""

    partition: SchedulerName | None = None
    """Partition. Absent: the cluster's default."""
    gpus_per_node: PositiveInt | None = None
    """Ranks on each node; must divide `gpus`."""
    gpu_type: SchedulerName | None = None
    """GPU type as Slurm names it. Absent: any."""
    cpus_per_gpu: PositiveInt | None = None
    """CPU cores for each rank."""
    memory_gb_per_gpu: PositiveInt | None = None
    """Host memory in GiB for each rank."""
    time_limit_minutes: PositiveInt | None = None
    """Time limit of an attempt in minutes; see `restart.on_time_limit`. Absent: the partition's limit."""
    account: SchedulerName | None = None
    """Account to charge. Absent: the default account."""
    qos: SchedulerName | None = None
    """Quality of service. Absent: the default of the account."""
    constraint: ConstraintName | None = None
    """Required features of the nodes, in the syntax of `sbatch --constraint`."""
    exclude: SchedulerName | None = None
    """Nodes to exclude, as a Slurm node list."""
    options: Annotated[dict[OptionName, OptionValue], Field(max_length=32)] = Field(default_factory=dict)
    """Further options of `sbatch` by their long names, such as `reservation: ai` or `exclusive: true`;
    `docs/operations.md` lists them. `true`: an option without a value."""

    @field_validator("options")
    @classmethod
    def _valid_options(cls, options: dict[str, str | bool]) -> dict[str, str | bool]:
        if problems := option_problems(options):
            raise SpecError(problems)
        return options


class WarningSignal(Strict):
    """The signal by which a program of task `script` learns that it must save and end. If the program ends after the
    warning, with any exit code but not by its own exception, the job continues in a next attempt."""

    name: Literal["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT"] = "SIGUSR2"
    """The signal that every rank gets before a preemption, a pause, a cancellation or the time limit. `SIGINT` raises
    `KeyboardInterrupt`; the others are ignored unless the program handles them."""
    lead_minutes: Annotated[PositiveFloat, Field(le=1000)] | None = None
    """Minutes between the signal and the time limit, at most half of it. Absent: a tenth of the limit, from 15 seconds
    up to the service's setting, by default 3 minutes. The time before a preemption is the cluster's."""


class Launch(Strict):
    """How the program of task `script` is started."""

    mode: Literal["python", "exec"] = "python"
    """`python`: `argv` is a Python file or module, which the Python of the ranks runs. `exec`: any command. The first
    word is a program on the search path, on which the Python of the ranks comes first; with a slash, it is a file
    of the uploaded folder or an absolute path."""
    folder: StartFolder = ""
    """The folder of the uploaded code in which the program starts: the working directory, to which the paths of `argv`
    and `keep` are relative. Empty: the root of the code."""
    per: Literal["rank", "node", "job"] = "rank"
    """Number of processes: one for each GPU (`rank`), for each node (`node`), or for the whole job (`job`). A process
    has all GPUs of the job on its node."""
    distributed: bool | None = None
    """Whether the processes get torchrun's variables, such as `RANK`, `WORLD_SIZE` and `MASTER_ADDR`. Absent: yes for a
    Python program, and for a command that starts more than once."""


class Restart(Strict):
    """When a job continues with a next attempt."""

    max_retries: Annotated[NonNegativeInt, Field(le=100)] = 2
    """Maximum number of retries after errors of the program. Preemptions and node failures do not count."""
    on_time_limit: Literal["continue", "fail"] = "continue"
    """`continue`: write a checkpoint, release the allocation and continue in a next attempt. `fail`: fail with the
    reason `time_limit`."""
    signal: WarningSignal | None = None
    """Absent: the program gets `SIGUSR2` and `SIGTERM`, and the job continues if `should_stop` returned true in the
    program or it handles `SIGTERM`."""
    fork_ranks: bool = False
    """Fork the ranks of a node from one process that has imported torch, so that they start, and start again after an
    error, within a fraction of a second. Without effect for task `script`, with `environment` other than modules, and
    with `profile.nsys`. Not measured on GPUs."""


class Health(Strict):
    """Detection of stalled and diverging runs."""

    stall_timeout_minutes: PositiveFloat | None = None
    """Minutes without progress of any rank after which the run fails as `stalled`; start-up and export get 10 minutes
    more. Absent: 15, but no limit for task `script`. A script that never reports progress fails when it has stood still
    for that long, as `idle_minutes` describes."""
    idle_minutes: PositiveFloat | None = None
    """Minutes in which the program does nothing on any node, after which the job warns: no process of it uses a
    processor or a GPU, reads, writes, prints or logs. Absent: 10; task `script` only."""
    stop_if_unused: bool = False
    """If the ranks of a program have not met after 3 minutes, or no process has opened a GPU of the job after 5, the
    job fails. Else a warning is an event of the job; task `script` only."""
    on_nan: Literal["stop", "skip", "ignore"] = "stop"
    """If the loss or gradient is not finite: `stop` the run, `skip` the update, or `ignore` it."""


class Profile(Strict):
    """A PyTorch profiler trace of some steps, written to the run's `artifacts/profile`."""

    start_step: PositiveInt
    """First step to trace, counted from 1."""
    steps: PositiveInt = 3
    """Number of steps to trace."""
    ranks: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=64)] = (0,)
    """Ranks to trace."""
    nsys: bool = False
    """Record with NVIDIA's `nsys` instead, which must be installed on the nodes."""


class Log(Strict):
    """How often metrics are logged."""

    every_steps: PositiveInt = 10
    """Steps between two points; the first and the last step are always logged."""
