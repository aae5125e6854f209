"""Rules that reject a spec at a site: unsupported combinations, disallowed paths and sizes. Pure functions."""

import re
from collections.abc import Iterator
from glob import has_magic
from pathlib import PurePosixPath

from trainyard.contract.kinds.tasks import TASKS, quoted, tasks_with
from trainyard.contract.problems import Problem
from trainyard.contract.spec.containers import container_paths, container_problems
from trainyard.contract.spec.decoders import BuiltinDecoder, LlamaModel
from trainyard.contract.spec.forks import parse_origin
from trainyard.contract.spec.image_data import ImageFiles, image_paths
from trainyard.contract.spec.objective_rules import unsupported_objectives
from trainyard.contract.spec.sbatch_options import disallowed_options
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel, HfModel
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.stored_dtypes import dtype_problems
from trainyard.contract.spec.text_data import TextData, paths_of
from trainyard.contract.spec.text_sources import CHAT_FORMATS
from trainyard.contract.spec.training_spec import TrainingSpec

DIGITS_CLASSES = 10
"""Number of classes of the builtin data set `digits`."""
BYTE_VALUES = 256
"""Vocabulary that the builtin language models need, whose tokens are bytes."""

Rule = tuple[bool, str, str]
"""Whether the rule rejects the spec, the path of the field, and the message."""

_NEEDS_GPUS = "needs GPUs, and this service's workers have none"
_FORMATS = {kind.name: kind.text_format for kind in TASKS.values() if kind.text_format}
"""The format of the examples of each task, which no other task reads."""
_GPU_TYPE = re.compile(r"[A-Za-z0-9_.-]+")


def unsupported_fields(spec: TrainingSpec, site: Site) -> list[Problem]:
    """Return a problem for every field that this release or this site does not support, with a supported choice."""
    rules = [*_general_rules(spec, site), *_float8_rules(spec, site), *_replication_rules(spec, site)]
    rules += [*_sharding_rules(spec, site), *_base_rules(spec)]
    if site.scheduler == "slurm":
        rules += _slurm_rules(spec, site)
    problems = [(param, message) for rejected, param, message in rules if rejected]
    if site.scheduler == "slurm":
        problems += disallowed_options(spec.resources.options, site.sbatch_options, site.fixed_options)
    problems += [*_mismatched_pairs(spec), *_decoder_sizes(spec), *_disallowed_paths(spec, site)]
    problems += [*dtype_problems(spec, site), *unsupported_objectives(spec), *_unsupported_text_tasks(spec)]
    problems += _unsupported_images(spec)
    if spec.environment.container is not None:
        problems += container_problems(spec.environment.container, site.container_runtime, site.container_images)
    return [Problem(param=param, message=message) for param, message in problems]


def _general_rules(spec: TrainingSpec, site: Site) -> list[Rule]:
    on_cpu, task = site.accelerator == "cpu", spec.task_kind
    return [
        (spec.gpus < task.min_ranks, "gpus", f"must be at least {task.min_ranks} for task `{task.name}`"),
        (
            spec.environment.container is not None and spec.profile is not None and spec.profile.nsys,
            "profile.nsys",
            "records processes of the node, and the ranks run in a container; use PyTorch's profiler",
        ),
        (spec.tf32 and on_cpu, "tf32", f"{_NEEDS_GPUS}; use `false`"),
        (
            spec.activation_checkpointing == "offload" and on_cpu and not site.emulates_gpus,
            "activation_checkpointing",
            f"`offload` {_NEEDS_GPUS}; use `full`",
        ),
        (
            spec.resume_from is not None and parse_origin(spec.resume_from) is None,
            "resume_from",
            "must be `<job id>` or `<job id>:<step>`",
        ),
        (
            isinstance(spec.model, ConvnetModel) and spec.model.classes < DIGITS_CLASSES,
            "model.classes",
            f"must be at least {DIGITS_CLASSES}, the number of classes of the data set `digits`",
        ),
        (spec.backend == "nccl" and on_cpu, "backend", f"`nccl` {_NEEDS_GPUS}; use `gloo` or `auto`"),
        (
            site.scheduler == "local"
            and any(v not in (None, {}) for k, v in spec.resources if k != "time_limit_minutes"),
            "resources",
            "this service runs jobs on its own machine and supports only `resources.time_limit_minutes`",
        ),
        (
            site.slots is not None and spec.gpus > site.slots,
            "gpus",
            f"is {spec.gpus}, but this service runs at most {site.slots} ranks at once (TRAINYARD_LOCAL_SLOTS)",
        ),
    ]


def _float8_rules(spec: TrainingSpec, site: Site) -> list[Rule]:
    used = spec.precision_kind.converts_linear_layers
    on_gpus = site.accelerator != "cpu" and spec.backend in ("auto", "nccl")
    return [
        (
            used and not (on_gpus or site.emulates_gpus),
            "precision",
            f"`fp8` needs ranks on GPUs, and backend `{spec.backend}` runs them on CPUs; use `nccl` or precision `bf16`"
            if site.accelerator != "cpu"
            else f"`fp8` {_NEEDS_GPUS}; use `bf16`",
        ),
        (
            used and spec.lora_rank is not None,
            "precision",
            "`fp8` is for layers that are trained whole, and `lora_rank` freezes them; use `bf16`",
        ),
        (
            used and not spec.strategy_kind.supports_float8,
            "precision",
            f"`fp8` cannot be combined with strategy `{spec.strategy}`; use `ddp`",
        ),
    ]


def _slurm_rules(spec: TrainingSpec, site: Site) -> list[Rule]:
    res = spec.resources
    per_node = min(spec.gpus, res.gpus_per_node or site.gpus_per_node or spec.gpus)
    return [
        (
            spec.gpus % per_node != 0,
            "resources.gpus_per_node",
            f"is {per_node}, which does not divide `gpus` {spec.gpus}; every node must have the same number of ranks",
        ),
        (
            spec.strategy_kind.has_one_process and per_node < spec.gpus,
            "strategy",
            f"`{spec.strategy}` runs in one process and cannot span nodes; use `ddp`, or set `resources.gpus_per_node` "
            "to `gpus`",
        ),
        (
            res.gpu_type is not None and not _GPU_TYPE.fullmatch(res.gpu_type),
            "resources.gpu_type",
            "must be one GPU type of Slurm; only letters, digits and `_ . -` are allowed",
        ),
    ]


def _replication_rules(spec: TrainingSpec, site: Site) -> list[Rule]:
    """Return the rules about strategies that copy the model to GPUs."""
    strategy = spec.strategy_kind
    return [
        (strategy.needs_gpus and site.accelerator == "cpu", "strategy", f"`{strategy.name}` {_NEEDS_GPUS}; use `ddp`"),
        (
            strategy.copies_layers and not can_be_copied(spec),
            "strategy",
            f"`{strategy.name}` cannot copy the layers of `hf` models, of activation checkpointing and of `compile`; "
            "use `ddp`",
        ),
    ]


def _base_rules(spec: TrainingSpec) -> list[Rule]:
    """Return the rules about `lora.base_dtype`."""
    dtype, field = spec.lora.base_dtype, "lora.base_dtype"
    held = spec.lora_rank is not None and dtype != "fp32"
    return [
        (held and not spec.task_kind.supports_low_bit_bases, field, f"`{dtype}` is for task `causal_lm`; use `fp32`"),
        (
            held and not spec.strategy_kind.supports_low_bit_bases,
            field,
            f"`{dtype}` cannot be combined with strategy `{spec.strategy}`; use `ddp`",
        ),
        (
            held and dtype != "bf16" and spec.strategy_kind.is_sharded and spec.fsdp.wrap == "size",
            field,
            f"`{dtype}` cannot be combined with wrap `size`, which counts values; use wrap `layer`",
        ),
    ]


def can_be_copied(spec: TrainingSpec) -> bool:
    """Return whether the model can be copied to each GPU. Layers whose `forward` was replaced would compute with the
    parameters of the original."""
    return not (isinstance(spec.model, HfModel) or spec.activation_checkpointing != "none" or spec.compile is True)


def _sharding_rules(spec: TrainingSpec, site: Site) -> list[Rule]:
    """Return the rules about strategies; rules about `fsdp` apply only to strategies that shard the model."""
    strategy, sharded = spec.strategy_kind, spec.strategy_kind.is_sharded
    by_size = spec.fsdp.wrap == "size"
    offload = sharded and spec.fsdp.cpu_offload
    on_cpu = site.accelerator == "cpu"
    return [
        (offload and on_cpu, "fsdp.cpu_offload", f"{_NEEDS_GPUS}; use `false`"),
        (
            offload and spec.optimizer.name == "muon",
            "fsdp.cpu_offload",
            "cannot be combined with optimizer `muon`, whose matrix products need the GPU; use `adamw`, or `false`",
        ),
        (
            strategy.sums_in_buckets and spec.ddp.sync_batchnorm and on_cpu,
            "ddp.sync_batchnorm",
            f"{_NEEDS_GPUS}; use `false`",
        ),
        (
            sharded and by_size and spec.fsdp.min_params is None,
            "fsdp.min_params",
            "is required with wrap `size`: the smallest number of parameters of a unit",
        ),
        (
            sharded and not by_size and spec.fsdp.min_params is not None,
            "fsdp.min_params",
            f"applies only to wrap `size`, and `fsdp.wrap` is `{spec.fsdp.wrap}`",
        ),
        (
            sharded and spec.fsdp.reduce_dtype == "bf16" and not spec.precision_kind.computes_in_bf16,
            "fsdp.reduce_dtype",
            f"`bf16` is for the precisions `bf16` and `fp8`, and `precision` is `{spec.precision}`",
        ),
        (
            strategy.replicates_shards and spec.fsdp.replicas == 1,
            "fsdp.replicas",
            f"must be at least 2 for strategy `{spec.strategy}`; with one replica, use `fsdp`",
        ),
        (
            sharded and not strategy.replicates_shards and spec.fsdp.replicas > 1,
            "fsdp.replicas",
            f"applies only to strategy `hsdp`, and `strategy` is `{spec.strategy}`",
        ),
    ]


def _mismatched_pairs(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the problems of a model or data set that does not fit the task, or of a pair that does not match; those of
    images are in `_unsupported_images`."""
    task = spec.task_kind
    if not task.builtin_models or task.reads_images:
        return
    for field, expected in (("model", task.builtin_models), ("data", task.builtin_data)):
        section = getattr(spec, field)
        name = getattr(section, "name", expected[0])
        names = " or ".join(f"`{one}`" for one in expected)
        if name not in expected:
            yield f"{field}.name", f"`{name}` does not fit task `{spec.task}`; use {names}"
        if not task.transformers_class and isinstance(section, HfModel | TextData):
            source = getattr(section, "source", "")
            yield f"{field}.source", f"`{source}` is for task `causal_lm`; use `builtin` and name {names}"
    if isinstance(spec.model, HfModel) and getattr(spec.data, "name", None) == "stdlib":
        yield "data.name", "`stdlib` is for the builtin models; use source `jsonl` with a model of source `hf`"
    if isinstance(spec.data, TextData) and not isinstance(spec.model, HfModel):
        for section, source in spec.data.described_sources.items():
            if source.format in CHAT_FORMATS:
                message = "needs a chat template, which only models of source `hf` have; use `completion`"
                yield f"{section}.format", f"`{source.format}` {message}"


def _decoder_sizes(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the problems of the sizes of a builtin language model, and of its rows."""
    model = spec.model
    if not isinstance(model, BuiltinDecoder):
        return
    if model.vocab < BYTE_VALUES:
        yield "model.vocab", f"is {model.vocab}, but tokens are bytes; use {BYTE_VALUES} or more"
    if model.width % model.heads:
        yield "model.width", f"is {model.width}, which is not a multiple of `model.heads` {model.heads}"
    elif isinstance(model, LlamaModel) and model.width // model.heads % 2:
        yield (
            "model.width",
            f"is {model.width}, so that a head has {model.width // model.heads} dimensions; rotary positions need an "
            "even number",
        )
    if isinstance(model, LlamaModel) and model.heads % model.grouped_heads:
        yield "model.key_value_heads", f"is {model.key_value_heads}, which does not divide `model.heads` {model.heads}"
    length = spec.data.max_length if isinstance(spec.data, TextData) else None
    if length is not None and length > model.context:
        yield "data.max_length", f"is {length}, more than the {model.context} tokens of `model.context`"


def _disallowed_paths(spec: TrainingSpec, site: Site) -> Iterator[tuple[str, str]]:
    """Yield the paths of models, data, images and mounts that the roots do not allow. No file is accessed."""
    roots = site.allowed_roots
    paths: list[tuple[str, str]] = []
    if isinstance(spec.model, HfModel):
        paths.append(("model.path", spec.model.path))
    if isinstance(spec.data, TextData):
        paths += paths_of(spec.data)
    if isinstance(spec.data, ImageFiles):
        paths += image_paths(spec.data)
    if spec.lora.adapter is not None:
        paths.append(("lora.adapter", spec.lora.adapter))
    if spec.environment.container is not None:
        paths += container_paths(spec.environment.container)
    for param, text in paths:
        path = PurePosixPath(text)
        if not path.is_absolute():
            yield param, "must be an absolute path: workers have a different current directory"
        elif ".." in path.parts:
            yield param, "must not contain `..`"
        elif not any(path.is_relative_to(root) for root in roots.allowed):
            allowed = ", ".join(roots.allowed) or "none"
            hint = "an administrator adds folders in TRAINYARD_ALLOWED_ROOTS"
            yield param, f"is outside the folders that this service allows: {allowed}; {hint}"
        elif not roots.contains(path):
            yield param, "is in a folder of the service itself, which no spec may read"
        elif (problem := roots.hidden_problem(path) or _hidden_jobs_problem(path, site)) is not None:
            yield param, problem


def _hidden_jobs_problem(path: PurePosixPath, site: Site) -> str | None:
    """Return why a path, which may be a pattern, can lead to the results of jobs that the user does not see."""
    if site.readable_jobs is None or site.runs is None:
        return None
    runs = PurePosixPath(site.runs)
    parts = path.parts
    literal = PurePosixPath(*parts[: next((no for no, part in enumerate(parts) if has_magic(part)), len(parts))])
    if runs.is_relative_to(literal):
        return "can match results of jobs that you cannot read; name the folder of a job, without a pattern"
    below = literal.relative_to(runs).parts if literal.is_relative_to(runs) else ()
    if below and below[0].startswith("job_") and below[0] not in site.readable_jobs:
        return f"is in the folder of {below[0]!r}, which is no job that you can read"
    return None


def _unsupported_text_tasks(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the problems of a task that reads texts and does not write them, or of their formats for another task."""
    yield from _other_formats(spec)
    task, expected, data = spec.task, spec.task_kind.text_format, spec.data
    if expected is None:
        return
    if not isinstance(spec.model, HfModel):
        yield "model.source", f"`builtin` does not fit task `{task}`; use `hf`"
    if spec.trainable is not None:
        yield "trainable", f"is not for task `{task}`; remove it to train the whole model, or set `lora_rank`"
    if not isinstance(data, TextData):
        yield (
            "data.source",
            f"`builtin` has no {spec.task_kind.examples}, which task `{task}` needs; use source `jsonl`",
        )
        return
    for section, source in data.described_sources.items():
        if source.format not in ("auto", *_FORMATS.values()):
            yield f"{section}.format", f"is `{source.format}`, and task `{task}` needs `{expected}`"


def _other_formats(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the formats that are for another task."""
    for section, source in spec.data.described_sources.items() if isinstance(spec.data, TextData) else ():
        users = [task for task, format in _FORMATS.items() if format == source.format]
        if users and spec.task not in users:
            yield f"{section}.format", f"`{source.format}` is for task {quoted(users)}; use another format"


def _unsupported_images(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the problems of a classification of images, or of images for a task that reads none."""
    task = spec.task
    if not spec.task_kind.reads_images:
        if isinstance(spec.data, ImageFiles):
            users = quoted(tasks_with(lambda kind: kind.reads_images))
            yield "data.source", f"`images` is for task {users}, and `task` is `{spec.task}`; use another source"
        return
    model, data = spec.model, spec.data
    if isinstance(model, HfModel):
        if not isinstance(data, ImageFiles):
            used = f"`{data.source}`" if data is not None else "no data"
            yield "data.source", f"{used} does not fit a model of source `hf` of task `{task}`; use source `images`"
        if spec.trainable is not None:
            advice = "remove it to train the whole model, or set `lora_rank`"
            yield "trainable", f"is not for models of source `hf` of task `{task}`; {advice}"
        return
    if not isinstance(model, ConvnetModel):
        name = getattr(model, "name", "")
        yield "model.name", f"`{name}` does not fit task `{task}`; use `convnet`, or a model of source `hf`"
    if isinstance(data, ImageFiles):
        if isinstance(model, ConvnetModel):
            yield "model.name", "`convnet` is for the data set `digits`; use a model of source `hf`"
    elif not isinstance(data, BuiltinData):
        source = getattr(data, "source", "")
        yield (
            "data.source",
            f"`{source}` does not fit task `{task}`; use `images` with a model of source `hf`, or `builtin` and name "
            "`digits`",
        )
    elif data.name != "digits":
        yield "data.name", f"`{data.name}` does not fit task `{task}`; use `digits`"
