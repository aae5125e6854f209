"""Acceptance of a spec: what this release does not do is refused, and every `auto` becomes a value."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.sections import ConvnetModel, Health
from trainyard.contract.spec import LOOP_TASKS, TrainingSpec
from trainyard.contract.unused import unused_fields

DIGITS = 10
"""Classes of the one builtin data set that is classified."""


@dataclass(frozen=True)
class Site:
    """What an `auto` depends on beyond the spec."""

    accelerator: Literal["cpu", "cuda"] = "cpu"
    scheduler: Literal["local", "slurm"] = "local"
    slots: int | None = None
    """Ranks that the local scheduler can run at once."""
    gpus_per_node: int | None = None
    """On Slurm: how many ranks a node takes where the spec does not say; absent: all of them."""


def resolve(spec: TrainingSpec, site: Site) -> TrainingSpec:
    """The spec with every `auto` settled, except `batch.micro_size`, which the first execution settles, and those that
    mean nothing to the task.

    Raises:
        SpecError: when the spec asks for something that is not built yet or would have no effect: nothing is ever
            silently ignored.
    """
    problems = unsupported(spec, site)
    if problems:
        raise SpecError(problems)
    auto: dict[str, Any] = {}
    trains = spec.task in LOOP_TASKS
    if trains and spec.strategy == "auto":
        auto["strategy"] = "single" if spec.gpus == 1 else "ddp"
    if trains and spec.precision == "auto":
        auto["precision"] = "bf16" if site.accelerator == "cuda" else "fp32"
    if spec.task != "script" and spec.backend == "auto":
        auto["backend"] = "nccl" if site.accelerator == "cuda" else "gloo"
    if site.scheduler == "slurm" and site.gpus_per_node and spec.resources.gpus_per_node is None:
        per_node = min(spec.gpus, site.gpus_per_node)
        auto["resources"] = spec.resources.model_copy(update={"gpus_per_node": per_node})
    resolved = spec.model_copy(update=auto)
    if idle := unused_fields(resolved):
        raise SpecError(idle)
    return resolved


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
        (spec.lora_rank is not None, "lora_rank", "LoRA is not built yet; leave it out to train every parameter"),
        (spec.trainable is not None, "trainable", "partial fine-tuning is not built yet"),
        (spec.model is not None and spec.model.source == "hf", "model.source", "`hf` is not built yet; take `builtin`"),
        (spec.data is not None and spec.data.source == "jsonl", "data.source", "`jsonl` is not built yet"),
        (spec.compile, "compile", "is not built yet; take `false`"),
        (spec.resume_from is not None, "resume_from", "starting from another job is not built yet"),
        (spec.profile is not None, "profile", "is not built yet"),
        (
            spec.health.stall_timeout_minutes != Health().stall_timeout_minutes,
            "health.stall_timeout_minutes",
            "the watchdog for stalled runs is not built yet; leave it out",
        ),
        (
            isinstance(spec.model, ConvnetModel) and spec.model.classes < DIGITS,
            "model.classes",
            f"is less than the {DIGITS} classes of the data set `digits`",
        ),
        (spec.backend == "mpi", "backend", "`mpi` is not built yet; take `gloo` or `nccl`"),
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
    return found + _mismatched(spec) + _oversized(spec, site)


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
            res.gpu_type is not None and not _GPU_TYPE.fullmatch(res.gpu_type),
            "resources.gpu_type",
            "is one GPU type as Slurm names it: letters, digits and _.- only",
        ),
    ]


def _sharding(spec: TrainingSpec, site: Site) -> list[tuple[bool, str, str]]:
    """Rules about how the model is spread. What `fsdp` says is only read where something is sharded."""
    sharded = spec.strategy in {"zero1", "zero2", "fsdp", "hsdp"}
    sized = spec.fsdp.wrap == "size"
    needs = "is not built yet" if site.accelerator == "cuda" else "needs GPUs, and this service's workers have none"
    return [
        (spec.strategy == "dp", "strategy", f"`dp` {needs}; take `ddp`"),
        (sharded and spec.fsdp.cpu_offload, "fsdp.cpu_offload", f"{needs}; take `false`"),
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
    """A builtin model or data set that does not serve the task."""
    fits = _FITS.get(spec.task)
    if fits is None:
        return []
    found = []
    for field, expected in zip(("model", "data"), fits, strict=True):
        name = getattr(getattr(spec, field), "name", expected)
        if name != expected:
            message = f"`{name}` does not serve task `{spec.task}`; take `{expected}`"
            found.append(Problem(param=f"{field}.name", message=message))
    return found
