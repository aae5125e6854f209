"""TrainingSpec: what a person asks for. Frozen, closed and versioned."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from trainyard.contract.base import DisplayName, NonNegativeInt, PositiveInt, ShortText, Strict
from trainyard.contract.problems import Problem, SpecError, problems_of
from trainyard.contract.spec.sections import (
    Amp,
    Batch,
    Checkpoint,
    Data,
    Ddp,
    Environment,
    Evaluation,
    Fsdp,
    Health,
    Log,
    Lora,
    Model,
    Optimizer,
    Profile,
    Resources,
    Restart,
    Schedule,
)
from trainyard.contract.spec.user_code import Argument, CodeDigest, code_problems

Task = Literal["causal_lm", "image_classification", "regression", "custom", "script", "comm_check"]
Strategy = Literal["auto", "single", "dp", "ddp", "zero1", "zero2", "fsdp", "hsdp"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Backend = Literal["auto", "nccl", "gloo", "mpi"]

LOOP_TASKS = frozenset({"causal_lm", "image_classification", "regression", "custom"})
"""Tasks that our loop trains: they have a model, data and a length."""


class TrainingSpec(Strict):
    """One training run. The words of the mission are at the top level; everything else has a default."""

    version: Literal[1] = 1
    name: DisplayName = "untitled"
    """For people; the scheduler never sees it."""
    task: Task
    """What is trained. `causal_lm`, `image_classification` and `regression` are built in; `custom` is a task of yours
    in our loop, `script` a program of yours under torchrun, `comm_check` a check of the ranks' communication."""
    strategy: Strategy = "auto"
    """How the model is spread over the ranks; see `docs/engine.md`. `auto`: `single` on one rank, else `ddp`, or where
    that is known not to fit the GPUs the least sharding that does; see `docs/planner.md`."""
    precision: Precision = "auto"
    """What forward and backward compute in; weights stay in fp32. `auto`: `bf16` on GPUs, else `fp32`."""
    lora_rank: PositiveInt | None = None
    """Absent: every parameter is trained."""
    gpus: Annotated[PositiveInt, Field(le=100_000)] = 1
    """World size; on a machine without GPUs, CPU worker processes."""
    model: Model | None = None
    """Required for the built-in tasks."""
    data: Data | None = None
    """Required for the built-in tasks."""
    target: ShortText | None = None
    """`module:function`; `custom` tasks only."""
    argv: Annotated[tuple[Argument, ...], Field(max_length=256)] | None = None
    """The program and its arguments; `script` tasks only. First a file of the uploaded folder, an absolute path, or
    `-m` and a module."""
    code: CodeDigest | None = None
    """The uploaded folder, by its digest; `custom` and `script` tasks only."""
    steps: PositiveInt | None = None
    """Length of the run in updates; either this or `epochs`."""
    epochs: PositiveInt | None = None
    """Length of the run in passes over the data; either this or `steps`."""
    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    fsdp: Fsdp = Fsdp()
    ddp: Ddp = Ddp()
    lora: Lora = Lora()
    trainable: Annotated[tuple[ShortText, ...], Field(min_length=1)] | None = None
    """Glob patterns of parameter names; absent: all."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """What of the forward is computed again in the backward, to save memory. It changes no digit."""
    compile: bool = False
    """Compile each block with torch.compile; the nodes need a C++ compiler."""
    tf32: bool = False
    """Compute fp32 products on GPUs in TF32: faster, and exact to about three digits."""
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    resume_from: ShortText | None = None
    """`<job id>` or `<job id>:<step>`: start from another job's checkpoint, its newest or that of the step. Where the
    specs make the same updates it is continued exactly, else it gives its weights alone."""
    backend: Backend = "auto"
    """Of the process group. `auto`: `nccl` on GPUs, else `gloo`."""
    amp: Amp = Amp()
    resources: Resources = Resources()
    environment: Environment = Environment()
    restart: Restart = Restart()
    health: Health = Health()
    profile: Profile | None = None
    """Absent: no trace, but one can be asked of the running job."""
    log: Log = Log()
    seed: NonNegativeInt = 0
    """Of initial weights, the order of examples and dropout."""
    metadata: Annotated[dict[ShortText, ShortText], Field(max_length=16)] = Field(default_factory=dict)
    """For finding jobs again: `GET /v1/jobs?metadata[team]=nlp`."""

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingSpec":
        problems = _conflicts(self)
        if problems:
            raise SpecError(problems)
        return self


def _conflicts(spec: TrainingSpec) -> list[Problem]:
    """Pure: every pair of fields that cannot stand together, each with the field to change."""
    found: list[Problem] = []

    def refuse(param: str, message: str) -> None:
        found.append(Problem(param=param, message=message))

    if spec.task in LOOP_TASKS:
        if (spec.steps is None) == (spec.epochs is None):
            both = "not both; set one to null" if spec.steps is not None else "one of them is needed"
            refuse("steps", f"give either `steps` or `epochs`: {both}")
        if spec.batch.size < spec.gpus:
            refuse("batch.size", f"is {spec.batch.size}, smaller than the {spec.gpus} ranks of `gpus`: some would idle")
    if spec.task in LOOP_TASKS - {"custom"}:
        for field in ("model", "data"):
            if getattr(spec, field) is None:
                refuse(field, f"is required for task `{spec.task}`")
    for task, field in (("custom", "target"), ("script", "argv")):
        present = getattr(spec, field) is not None
        if present != (spec.task == task):
            refuse(field, f"is for task `{task}` only" if present else f"is required for task `{task}`")
    found += code_problems(spec.task, spec.target, spec.argv, spec.code)
    if spec.strategy == "single" and spec.gpus != 1:
        refuse("gpus", f"is {spec.gpus}, but strategy `single` has exactly one rank; take `ddp` or set `gpus: 1`")
    if isinstance(spec.batch.micro_size, int) and spec.batch.micro_size > spec.batch.size:
        refuse("batch.micro_size", f"is {spec.batch.micro_size}, larger than `batch.size` {spec.batch.size}")
    if spec.steps is not None and spec.schedule.warmup_steps > spec.steps:
        refuse("schedule.warmup_steps", f"is {spec.schedule.warmup_steps}, more than the run's {spec.steps} steps")
    if spec.profile is not None:
        last = 0 if spec.strategy == "dp" else spec.gpus - 1
        outside = [rank for rank in spec.profile.ranks if rank > last]
        if outside:
            refuse("profile.ranks", f"names rank {outside[0]}, but the ranks are 0 to {last}")
        if spec.steps is not None and spec.profile.start_step > spec.steps:
            refuse("profile.start_step", f"is {spec.profile.start_step}, after the last of the {spec.steps} steps")
    if spec.lora_rank is not None and spec.trainable is not None:
        refuse("trainable", "cannot stand beside `lora_rank`, which trains adapters alone; leave one of them out")
    if spec.strategy == "hsdp" and spec.gpus < spec.fsdp.replicas:
        refuse("gpus", f"is {spec.gpus}, fewer than the {spec.fsdp.replicas} of `fsdp.replicas`; each needs a rank")
    elif spec.strategy == "hsdp" and spec.gpus % spec.fsdp.replicas:
        refuse("fsdp.replicas", f"is {spec.fsdp.replicas}, which does not divide `gpus` {spec.gpus}")
    return found


def excluded_by(chosen: Mapping[str, Any]) -> dict[str, None]:
    """`steps` and `epochs` exclude each other: what whoever chooses one of them alone gives up of a spec."""
    lengths = {"steps", "epochs"}
    named = {name for name in lengths if chosen.get(name) is not None}
    return dict.fromkeys(lengths - set(chosen)) if named else {}


def parse_spec(document: Mapping[str, Any]) -> TrainingSpec:
    """Read a spec from plain data.

    Raises:
        SpecError: with one problem a field, each naming the field and the way out.
    """
    try:
        return TrainingSpec.model_validate(document)
    except ValidationError as error:
        raise SpecError(problems_of(error, model=TrainingSpec)) from None


def dump_spec(spec: TrainingSpec) -> dict[str, Any]:
    """The spec as plain JSON data, every default written out; `parse_spec` reads it back to an equal spec."""
    return spec.model_dump(mode="json", by_alias=True)
