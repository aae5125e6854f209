"""The training spec: the model, its data and its training. Frozen, validated and versioned."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from trainyard.contract.base import DisplayName, NonNegativeInt, PositiveInt, ShortText, Strict, example, one_of
from trainyard.contract.kinds.precisions import PRECISIONS, Precision, PrecisionKind
from trainyard.contract.kinds.strategies import STRATEGIES, Strategy, StrategyKind
from trainyard.contract.kinds.tasks import TASKS, Task, TaskKind
from trainyard.contract.problems import Problem, SpecError, problems_of
from trainyard.contract.spec.field_advice import UNKNOWN_FIELD_ADVICE
from trainyard.contract.spec.image_data import ImageFiles, image_data_problems
from trainyard.contract.spec.objectives import Objective, Preference
from trainyard.contract.spec.optimization import Ema, Loss, Optimizer, Schedule
from trainyard.contract.spec.prerequisites import After, repeated_prerequisites
from trainyard.contract.spec.rank_environment import Environment
from trainyard.contract.spec.sections import (
    MAX_PATTERNS,
    Amp,
    Batch,
    Checkpoint,
    Data,
    Ddp,
    EarlyStopping,
    Embedding,
    Evaluation,
    Fsdp,
    Health,
    Launch,
    Log,
    Lora,
    Model,
    NamePattern,
    Profile,
    Resources,
    Restart,
)
from trainyard.contract.spec.text_data import TextData, text_data_problems
from trainyard.contract.spec.user_code import MAX_ARGUMENTS, Argument, CodeDigest, OutputPath, code_problems

Backend = Literal["auto", "nccl", "gloo", "mpi"]

MAX_LABELS = 16
"""Labels in `metadata`."""
NODE_TEST = "trainyard.node_test"
"""The label of a job that tests a partition or node: it runs on excluded nodes, too, and its faults exclude none."""

UNTITLED = "untitled"


class TrainingSpec(Strict):
    """One training run."""

    model_config = example(
        name="parity",
        task="regression",
        gpus=2,
        model={"source": "builtin", "name": "mlp"},
        data={"source": "builtin", "name": "parity"},
        steps=20,
        batch={"size": 10},
    )

    version: Literal[1] = 1
    name: DisplayName = UNTITLED
    """Display name; it is not passed to the scheduler."""
    project: DisplayName | None = None
    """Groups jobs in lists. Absent: the first project that the program names to W&B, if any."""
    task: Task
    """The kind of training: a builtin task (`causal_lm`, `sequence_classification`, `text_embedding`,
    `image_classification`, `regression`), your own task in Trainyard's loop (`custom`), your own program under torchrun
    (`script`), or a test of the communication between ranks (`comm_check`)."""
    strategy: Strategy = "auto"
    """Parallelism; see `docs/engine.md`. `auto`: `single` on one rank, else `ddp`, or if that does not fit the GPUs,
    the least sharding that does; see `docs/planner.md`."""
    precision: Precision = "auto"
    """Data type of the forward and backward pass. `auto`: `bf16` on GPUs, else `fp32`. `fp8`: linear
    layers compute in 8 bits, all else as with `bf16`; needs torchao and GPUs of compute capability 8.9 or higher."""
    param_dtype: Literal["fp32", "bf16"] = "fp32"
    """Data type of the trained parameters. With `bf16` the model computes with them in bf16, and updates change exact
    fp32 values: the 16 bits that bf16 lacks are stored beside them. For precision `bf16`."""
    grad_dtype: Literal["fp32", "bf16"] = "fp32"
    """Data type in which gradients are stored and micro-batches are added. `bf16` is for `param_dtype: bf16`."""
    lora_rank: PositiveInt | None = None
    """Rank of the LoRA adapters. Absent: no adapters; all parameters are trained."""
    gpus: Annotated[PositiveInt, Field(le=100_000)] = 1
    """World size: number of GPUs, or of CPU processes on a machine without GPUs."""
    model: Model | None = None
    """Required for the built-in tasks."""
    data: Data | None = None
    """Required for the built-in tasks."""
    target: ShortText | None = None
    """The function that builds your task, as `module:function`; task `custom` only."""
    argv: Annotated[tuple[Argument, ...], Field(max_length=MAX_ARGUMENTS)] | None = None
    """Your program and its arguments; task `script` only. The program is a file of the uploaded folder, an absolute
    path, or `-m` and a module. With `launch.folder`, the file is relative to that folder."""
    resume_argv: Annotated[tuple[Argument, ...], Field(max_length=MAX_ARGUMENTS)] = ()
    """Arguments appended to `argv` when the ranks start and the program has written files to the checkpoint folder or a
    path of `keep`; task `script` only. `{checkpoint_dir}` in them becomes the path of that folder."""
    keep: Annotated[tuple[OutputPath, ...], Field(max_length=20)] = ()
    """Files and folders in the working directory that the program writes, in addition to the usual folders such as
    `out` and `lightning_logs`. The next attempt finds them, and they are artifacts; task `script` only."""
    launch: Launch | None = None
    """Absent: a Python program with a process for each GPU; task `script` only."""
    code: CodeDigest | None = None
    """Digest of the uploaded folder with your code; tasks `custom` and `script` only."""
    steps: PositiveInt | None = None
    """Number of steps. Set this or `epochs`, not both."""
    epochs: PositiveInt | None = None
    """Number of passes over the data. Set this or `steps`, not both."""
    objective: Objective = "sft"
    """The objective of a language model: learn the tokens of examples (`sft`), or preferences between answers with the
    losses of DPO, ORPO, KTO or SimPO; task `causal_lm` only. See `docs/objectives.md`."""
    preference: Preference = Preference()
    batch: Batch = Batch()
    loss: Loss = Loss()
    embedding: Embedding = Embedding()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    ema: Ema | None = None
    """Absent: no average of the weights."""
    fsdp: Fsdp = Fsdp()
    ddp: Ddp = Ddp()
    lora: Lora = Lora()
    trainable: Annotated[tuple[NamePattern, ...], Field(min_length=1, max_length=MAX_PATTERNS)] | None = None
    """Glob patterns of the names of the parameters to train. Absent: all."""
    activation_checkpointing: Literal["none", "selective", "full", "offload"] = "none"
    """Recompute activations in the backward pass to save memory; the results are bitwise identical. `full` stores only
    the inputs of layers; `selective` also stores products and attention; `offload` stores the inputs of layers in host
    memory (GPUs only)."""
    compile: Annotated[bool | Literal["auto"], one_of("`true`, `false` or `auto`")] = False
    """Compile each block with `torch.compile`; the nodes need a C++ compiler. `auto`: on GPUs, in runs of more than
    50 steps, except for your own model."""
    tf32: bool = False
    """Use TF32 for fp32 matrix products on GPUs: faster, with about three significant digits."""
    evaluation: Evaluation = Evaluation()
    early_stopping: EarlyStopping | None = None
    """Absent: the run has all its steps."""
    checkpoint: Checkpoint = Checkpoint()
    after: After = ()
    """Ids of jobs that must succeed before this job is submitted to the scheduler; `<job id>:ended` permits any end.
    See `docs/api.md`."""
    resume_from: ShortText | None = None
    """`<job id>` or `<job id>:<step>`: start from that job's newest checkpoint, or from its checkpoint at the step."""
    resume: Literal["state", "weights"] = "state"
    """The part of the checkpoint that `resume_from` takes. `state`: training continues after its step, with the
    optimizer's state and the position in the data; learning rate, decay, clipping, schedule, length and data types may
    differ. `weights`: training starts at the first step."""
    backend: Backend = "auto"
    """Backend of the process group. `auto`: `nccl` on GPUs, else `gloo`."""
    amp: Amp = Amp()
    resources: Resources = Resources()
    environment: Environment = Environment()
    restart: Restart = Restart()
    health: Health = Health()
    profile: Profile | None = None
    """Absent: no trace; it can be requested while the job runs."""
    log: Log = Log()
    seed: NonNegativeInt = 0
    """Seed of initial weights, shuffling and dropout."""
    metadata: Annotated[dict[ShortText, ShortText], Field(max_length=MAX_LABELS)] = Field(default_factory=dict)
    """Labels to filter jobs by: `GET /v1/jobs?metadata[team]=nlp`."""

    @property
    def task_kind(self) -> TaskKind:
        """The facts about the task."""
        return TASKS[self.task]

    @property
    def strategy_kind(self) -> StrategyKind:
        """The facts about the strategy."""
        return STRATEGIES[self.strategy]

    @property
    def precision_kind(self) -> PrecisionKind:
        """The facts about the precision."""
        return PRECISIONS[self.precision]

    @property
    def runs_command(self) -> bool:
        """Whether the program is any command, not a Python file or module."""
        return self.launch is not None and self.launch.mode == "exec"

    @property
    def start_folder(self) -> str:
        """The folder in which the program starts, relative to the root of its code; empty: the root."""
        return self.launch.folder if self.launch else ""

    @property
    def has_one_process_per_node(self) -> bool:
        """Whether a node has a single process for all of its GPUs, instead of a process for each."""
        return self.strategy_kind.has_one_process or (self.launch is not None and self.launch.per != "rank")

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingSpec":
        problems = _conflicts(self)
        if problems:
            raise SpecError(problems)
        return self


def _conflicts(spec: TrainingSpec) -> list[Problem]:
    """Return a problem for every conflict between fields, with the field to change."""
    problems: list[Problem] = []

    def refuse(param: str, message: str) -> None:
        problems.append(Problem(param=param, message=message))

    if spec.task_kind.in_loop:
        if (spec.steps is None) == (spec.epochs is None):
            both = "`steps` and `epochs` are both set; remove one"
            refuse("steps", both if spec.steps is not None else "set `steps` or `epochs`")
        if spec.batch.size < spec.gpus:
            refuse("batch.size", f"is {spec.batch.size}, smaller than the {spec.gpus} ranks of `gpus`")
    if spec.task_kind.is_builtin:
        for field in ("model", "data"):
            if getattr(spec, field) is None:
                refuse(field, f"is required for task `{spec.task}`")
    for kind in (kind for kind in TASKS.values() if kind.code_field):
        present = getattr(spec, str(kind.code_field)) is not None
        if present != (spec.task == kind.name):
            message = f"is for task `{kind.name}` only" if present else f"is required for task `{kind.name}`"
            refuse(str(kind.code_field), message)
    problems += _program_problems(spec)
    strategy = spec.strategy_kind
    if strategy.max_ranks == 1 and spec.gpus != 1:
        advice = "use `ddp` or set `gpus: 1`"
        refuse("gpus", f"is {spec.gpus}, but strategy `{strategy.name}` has exactly one rank; {advice}")
    if isinstance(spec.batch.micro_size, int) and spec.batch.micro_size > spec.batch.size:
        refuse("batch.micro_size", f"is {spec.batch.micro_size}, larger than `batch.size` {spec.batch.size}")
    if spec.steps is not None and spec.schedule.warmup_steps > spec.steps:
        refuse("schedule.warmup_steps", f"is {spec.schedule.warmup_steps}, more than the run's {spec.steps} steps")
    if spec.schedule.warmup_steps and spec.schedule.warmup_ratio:
        refuse("schedule.warmup_ratio", "cannot be combined with `schedule.warmup_steps`; remove one of them")
    if spec.ema is not None and spec.steps is not None and spec.ema.every > spec.steps:
        refuse("ema.every", f"is {spec.ema.every}, more than the run's {spec.steps} steps")
    if spec.profile is not None:
        last = 0 if strategy.has_one_process else spec.gpus - 1
        outside = [rank for rank in spec.profile.ranks if rank > last]
        if outside:
            refuse("profile.ranks", f"contains rank {outside[0]}, but ranks are 0 to {last}")
        if spec.steps is not None and spec.profile.start_step > spec.steps:
            refuse("profile.start_step", f"is {spec.profile.start_step}, after the last of the {spec.steps} steps")
    problems += [*_data_problems(spec.data), *repeated_prerequisites(spec.after)]
    if spec.optimizer.name == "muon" and not spec.optimizer.momentum:
        refuse("optimizer.momentum", "is 0, and `muon` needs a momentum; remove the field for the default, 0.95")
    if spec.lora_rank is not None and spec.trainable is not None:
        refuse("trainable", "cannot be combined with `lora_rank`, which trains only adapters; remove one of them")
    return [*problems, *_replica_problems(spec)]


def _replica_problems(spec: TrainingSpec) -> Iterator[Problem]:
    gpus, replicas = spec.gpus, spec.fsdp.replicas
    if not spec.strategy_kind.replicates_shards:
        return
    if gpus < replicas:
        message = f"is {gpus}, fewer than `fsdp.replicas` {replicas}; each replica needs a rank"
        yield Problem(param="gpus", message=message)
    elif gpus % replicas:
        yield Problem(param="fsdp.replicas", message=f"is {replicas}, which does not divide `gpus` {gpus}")


def _data_problems(data: Data | None) -> Iterator[Problem]:
    if isinstance(data, TextData):
        yield from text_data_problems(data)
    if isinstance(data, ImageFiles):
        yield from image_data_problems(data)


def _program_problems(spec: TrainingSpec) -> list[Problem]:
    argv, folder = spec.argv, spec.start_folder
    problems = code_problems(spec.task, spec.target, argv, spec.code, runs_command=spec.runs_command, folder=folder)
    return problems + _launch_problems(spec) + _warning_problems(spec)


def _launch_problems(spec: TrainingSpec) -> list[Problem]:
    per_node = spec.resources.gpus_per_node or spec.gpus
    if spec.launch is None or spec.launch.per != "job" or spec.gpus <= per_node:
        return []
    message = f"is `job`, which is one process on one node, but `resources.gpus_per_node` spreads {spec.gpus} GPUs"
    return [Problem(param="launch.per", message=f"{message} over {spec.gpus // per_node} nodes; use `node`")]


def _warning_problems(spec: TrainingSpec) -> list[Problem]:
    warning, limit = spec.restart.signal, spec.resources.time_limit_minutes
    if warning is None or warning.lead_minutes is None or limit is None or warning.lead_minutes <= limit / 2:
        return []
    message = f"is {warning.lead_minutes:g}, more than half of `resources.time_limit_minutes`, {limit}"
    return [Problem(param="restart.signal.lead_minutes", message=message)]


def fields_reset_by(changes: Mapping[str, Any]) -> dict[str, None]:
    """Return the fields that a change resets to None: `steps` and `epochs` exclude each other."""
    lengths = {"steps", "epochs"}
    changed = {name for name in lengths if changes.get(name) is not None}
    return dict.fromkeys(lengths - set(changes)) if changed else {}


def parse_spec(document: Mapping[str, Any]) -> TrainingSpec:
    """Parse a spec from plain data. Raises SpecError: with a problem for each invalid field."""
    try:
        return TrainingSpec.model_validate(document)
    except ValidationError as error:
        raise SpecError(problems_of(error, model=TrainingSpec, advice=UNKNOWN_FIELD_ADVICE)) from None


def dump_spec(spec: TrainingSpec) -> dict[str, Any]:
    """Return the spec as plain JSON data with all defaults; `parse_spec` returns an equal spec from it."""
    return spec.model_dump(mode="json", by_alias=True)
