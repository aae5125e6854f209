"""Acceptance of a spec: what this release does not do is refused, and every `auto` becomes a value."""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.forks import parse_origin
from trainyard.contract.spec.ineffective_fields import unused_fields
from trainyard.contract.spec.paths import outside
from trainyard.contract.spec.sections import ConvnetModel, HfModel, JsonlData
from trainyard.contract.spec.sizes import size_problems
from trainyard.contract.spec.training_spec import LOOP_TASKS, TrainingSpec

STALL_MINUTES = 15.0
"""Without progress, where a spec of one of our own tasks does not say."""
DIGITS = 10
"""Classes of the one builtin data set that is classified."""


@dataclass(frozen=True)
class Site:
    """What an `auto` depends on beyond the spec."""

    accelerator: Literal["cpu", "cuda"] | None = "cpu"
    """None: not known yet."""
    scheduler: Literal["local", "slurm"] = "local"
    slots: int | None = None
    """Ranks that the local scheduler can run at once."""
    gpus_per_node: int | None = None
    """On Slurm: how many ranks a node takes where the spec does not say; absent: all of them."""
    roots: tuple[str, ...] = ("/",)
    """Folders under which a spec's models and data must lie."""


def resolve(spec: TrainingSpec, site: Site) -> TrainingSpec:
    """The spec with every `auto` settled, except `batch.micro_size`, which the first execution settles, and those that
    mean nothing to the task. While the accelerator is not known, a spec to which it matters stays as it is.

    Raises:
        SpecError: when the spec asks for something that is not built yet or would have no effect: nothing is ever
            silently ignored.
    """
    if site.accelerator is None:
        return _undecided(spec, site)
    problems = unsupported(spec, site)
    if problems:
        raise SpecError(problems)
    auto: dict[str, Any] = {}
    trains = spec.task in LOOP_TASKS
    if trains and spec.strategy == "auto":
        auto["strategy"] = "single" if spec.gpus == 1 else "ddp"
    if trains and spec.precision == "auto":
        auto["precision"] = "bf16" if site.accelerator == "cuda" else "fp32"
    if trains and spec.health.stall_timeout_minutes is None:
        auto["health"] = spec.health.model_copy(update={"stall_timeout_minutes": STALL_MINUTES})
    if spec.task != "script" and spec.backend == "auto":
        auto["backend"] = "nccl" if site.accelerator == "cuda" else "gloo"
    if site.scheduler == "slurm" and site.gpus_per_node and spec.resources.gpus_per_node is None:
        per_node = min(spec.gpus, site.gpus_per_node)
        auto["resources"] = spec.resources.model_copy(update={"gpus_per_node": per_node})
    resolved = spec.model_copy(update=auto)
    if idle := unused_fields(resolved):
        raise SpecError(idle)
    return resolved


def _undecided(spec: TrainingSpec, site: Site) -> TrainingSpec:
    """What runs with neither accelerator is refused now; the rest waits for the answer, unless it is the same."""
    try:
        with_gpus = resolve(spec, replace(site, accelerator="cuda"))
    except SpecError:
        resolve(spec, replace(site, accelerator="cpu"))
        return spec
    try:
        without = resolve(spec, replace(site, accelerator="cpu"))
    except SpecError:
        return spec
    return with_gpus if with_gpus == without else spec


def unsupported(spec: TrainingSpec, site: Site) -> list[Problem]:
    """Everything in the spec that this release cannot do, with what it can."""
    env, res = spec.environment, spec.resources
    rules: list[tuple[bool, str, str]] = [
        (
            spec.task == "comm_check" and spec.gpus == 1,
            "gpus",
            "is 1, and a check of communication needs at least two ranks",
        ),
        *_sharding(spec, site),
        (
            spec.tf32 and site.accelerator == "cpu",
            "tf32",
            "needs GPUs, and this service's workers have none; take `false`",
        ),
        (
            spec.resume_from is not None and parse_origin(spec.resume_from) is None,
            "resume_from",
            "is `<job id>` or `<job id>:<step>`",
        ),
        (
            isinstance(spec.model, ConvnetModel) and spec.model.classes < DIGITS,
            "model.classes",
            f"is less than the {DIGITS} classes of the data set `digits`",
        ),
        (
            spec.backend == "nccl" and site.accelerator == "cpu",
            "backend",
            "`nccl` needs GPUs, and this service's workers have none; take `gloo` or `auto`",
        ),
        (bool(env.modules or env.conda or env.venv or env.container), "environment", "only `variables` is built yet"),
        (
            site.scheduler == "local" and any(v is not None for k, v in res if k != "time_limit_minutes"),
            "resources",
            "this service runs jobs on its own machine, where only `time_limit_minutes` of `resources` means something",
        ),
    ]
    if site.scheduler == "slurm":
        rules += _cluster_rules(spec, site)
    found = [Problem(param=param, message=message) for refused, param, message in rules if refused]
    return found + _mismatched(spec) + size_problems(spec) + outside(spec, site.roots) + _oversized(spec, site)


def _oversized(spec: TrainingSpec, site: Site) -> list[Problem]:
    """More ranks than the machine will ever have room for."""
    if site.slots is None or spec.gpus <= site.slots:
        return []
    message = f"is {spec.gpus}, but this service runs at most {site.slots} ranks at once (TRAINYARD_LOCAL_SLOTS)"
    return [Problem(param="gpus", message=message)]


_GPU_TYPE = re.compile(r"[A-Za-z0-9_.-]+")


def _cluster_rules(spec: TrainingSpec, site: Site) -> list[tuple[bool, str, str]]:
    """What a Slurm job cannot be."""
    res = spec.resources
    per_node = min(spec.gpus, res.gpus_per_node or site.gpus_per_node or spec.gpus)
    return [
        (
            spec.gpus % per_node != 0,
            "resources.gpus_per_node",
            f"is {per_node}, which does not divide `gpus` {spec.gpus}: every node gets the same number of ranks",
        ),
        (
            spec.strategy == "dp" and per_node < spec.gpus,
            "strategy",
            "`dp` is one process and cannot span nodes; take `ddp`, or set `resources.gpus_per_node` to `gpus`",
        ),
        (
            res.gpu_type is not None and not _GPU_TYPE.fullmatch(res.gpu_type),
            "resources.gpu_type",
            "is one GPU type as Slurm names it: letters, digits and _.- only",
        ),
    ]


def _sharding(spec: TrainingSpec, site: Site) -> list[tuple[bool, str, str]]:
    """Rules about how the model is spread. What `fsdp` says is only read where something is sharded."""
    sharded = spec.strategy in {"zero1", "zero2", "fsdp", "hsdp"}
    sized = spec.fsdp.wrap == "size"
    hosts = site.accelerator == "cpu"
    needs = "needs GPUs, and this service's workers have none"
    return [
        (spec.strategy == "dp" and hosts, "strategy", f"`dp` {needs}; take `ddp`"),
        (sharded and spec.fsdp.cpu_offload and hosts, "fsdp.cpu_offload", f"{needs}; take `false`"),
        (
            sharded and spec.fsdp.cpu_offload and spec.precision == "fp16",
            "fsdp.cpu_offload",
            "does not go with precision `fp16`, whose scaled gradients are checked on the device; take `bf16`",
        ),
        (spec.strategy == "ddp" and spec.ddp.sync_batchnorm and hosts, "ddp.sync_batchnorm", f"{needs}; take `false`"),
        (
            sharded and sized and spec.fsdp.min_params is None,
            "fsdp.min_params",
            "is required for wrap `size`: the fewest parameters that make a unit",
        ),
        (
            sharded and not sized and spec.fsdp.min_params is not None,
            "fsdp.min_params",
            f"is for wrap `size` only, and `fsdp.wrap` is `{spec.fsdp.wrap}`",
        ),
        (
            spec.strategy == "hsdp" and spec.fsdp.replicas == 1,
            "fsdp.replicas",
            "is 1, which is what `fsdp` does; take `fsdp`, or set the number of replicas",
        ),
        (
            sharded and spec.strategy != "hsdp" and spec.fsdp.replicas > 1,
            "fsdp.replicas",
            f"is for strategy `hsdp` only, and `strategy` is `{spec.strategy}`",
        ),
    ]


_FITS = {
    "causal_lm": ("gpt", "stdlib"),
    "image_classification": ("convnet", "digits"),
    "regression": ("mlp", "parity"),
}


def _mismatched(spec: TrainingSpec) -> list[Problem]:
    """A model or data set that does not serve the task, or not the other one."""
    fits = _FITS.get(spec.task)
    if fits is None:
        return []
    found = []
    for field, expected in zip(("model", "data"), fits, strict=True):
        section = getattr(spec, field)
        name = getattr(section, "name", expected)
        if name != expected:
            message = f"`{name}` does not serve task `{spec.task}`; take `{expected}`"
            found.append(Problem(param=f"{field}.name", message=message))
        if spec.task != "causal_lm" and isinstance(section, HfModel | JsonlData):
            message = f"`{section.source}` is for task `causal_lm`; take `builtin`, `{expected}`"
            found.append(Problem(param=f"{field}.source", message=message))
    if isinstance(spec.model, HfModel) and getattr(spec.data, "name", None) == "stdlib":
        message = "`stdlib` is bytes, for the builtin `gpt`; give a model of source `hf` data of source `jsonl`"
        found.append(Problem(param="data.name", message=message))
    if isinstance(spec.data, JsonlData) and spec.data.format == "chat" and not isinstance(spec.model, HfModel):
        message = "`chat` needs a chat template, which only a model of source `hf` has; take `completion`"
        found.append(Problem(param="data.format", message=message))
    return found
