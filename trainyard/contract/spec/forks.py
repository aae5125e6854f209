"""Forks: the checkpoint that `resume_from` names, and whether two specs are compatible. Pure functions."""

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from trainyard.contract.problems import Problem
from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.training_spec import TrainingSpec

_FORM = re.compile(r"(job_[0-9a-z]{26})(?::([0-9]{1,10}))?")

ADJUSTABLE = (
    *("optimizer.lr", "optimizer.weight_decay", "optimizer.betas", "optimizer.eps", "optimizer.clip_norm"),
    *("optimizer.no_decay", "optimizer.lr_scale", "optimizer.state_dtype", "schedule", "loss", "precision"),
    *("param_dtype", "grad_dtype", "amp", "tf32", "health.on_nan", "preference"),
)
"""Fields that change the updates, and that a run may change between two steps: state and position remain valid."""

FIXED = (
    *("task", "target", "code", "model", "data", "batch.size", "batch.last", "optimizer.name", "optimizer.momentum"),
    *("lora_rank", "lora.alpha", "lora.dropout", "lora.targets", "lora.base_dtype", "trainable", "seed", "objective"),
    *("lora.rslora", "lora.dora", "lora.modules_to_save", "lora.adapter", "lora.rank_pattern", "lora.alpha_pattern"),
)
"""Fields to which the optimizer's state and the position in the data belong. Specs with equal values of these and of
the adjustable fields make the same updates, with any strategy and number of ranks."""

LAYOUT = ("gpus", "strategy", "fsdp", "ddp", "batch.micro_size", "compile", "backend")
"""Fields that change the order in which numbers are added, but not the updates."""

_COMPATIBILITY_FIELDS = (
    *("task", "lora_rank", "lora.rank_pattern", "lora.targets", "lora.dora", "lora.modules_to_save", "trainable"),
)
"""Specs with equal values of these fields train the same parameters, so that the weights are compatible."""

_MODEL_FREE = {"dropout", "path"}
"""Fields of a model that do not change its parameters. The worker checks the parameters of another folder."""


def parse_origin(text: str) -> tuple[str, int | None] | None:
    """Return the job's id and the step, if it is given; None if the text has another form."""
    match = _FORM.fullmatch(text)
    return (match[1], int(match[2]) if match[2] else None) if match else None


def fixed_differences(source: TrainingSpec, fork: TrainingSpec) -> list[str]:
    """Return the differing fields that restrict the fork to the source's weights."""
    return [field for name in FIXED for field in _differing_fields(name, _value(source, name), _value(fork, name))]


def adjusted_differences(source: TrainingSpec, fork: TrainingSpec) -> list[str]:
    """Return the differing fields that make the fork's updates differ from the updates that the source would make."""
    names = [name for name in ADJUSTABLE if _value(source, name) != _value(fork, name)]
    if fork.schedule.name != "constant" or fork.schedule.warmup_ratio:
        # The learning rate at a step depends on the number of steps.
        names += [name for name in ("steps", "epochs") if _value(source, name) != _value(fork, name)]
    return names


def layout_differences(source: TrainingSpec, fork: TrainingSpec) -> list[str]:
    """Return the differing fields that make a fork that continues the source agree with it only up to rounding."""
    return [name for name in LAYOUT if _value(source, name) != _value(fork, name)]


def incompatible_fields(source: TrainingSpec, fork: TrainingSpec) -> list[Problem]:
    """Return the differing fields that make the source's weights incompatible with the fork's model."""
    names = [name for name in _COMPATIBILITY_FIELDS if _value(source, name) != _value(fork, name)]
    ours, theirs = _plain(fork.model), _plain(source.model)
    names += [f"model.{key}" for key in sorted({*ours, *theirs} - _MODEL_FREE) if ours.get(key) != theirs.get(key)]
    return [
        Problem(param=name, message="differs from that of the job in `resume_from`, whose weights would not fit")
        for name in names
    ]


def _plain(section: Any) -> dict[str, Any]:
    return section.model_dump(mode="json") if section is not None else {}


def _differing_fields(name: str, source: Any, fork: Any) -> Iterator[str]:
    """Yield the fields of a section in which two specs differ: its `source` if that differs, since the other fields
    belong to it. Yield the name itself unless it is a section of both."""
    if not (isinstance(source, BaseModel) and isinstance(fork, BaseModel)):
        if source != fork:
            yield name
        return
    ours, theirs = _plain(fork), _plain(source)
    keys = ["source"] if ours.get("source") != theirs.get("source") else sorted({*ours, *theirs})
    yield from (f"{name}.{key}" for key in keys if ours.get(key) != theirs.get(key))


def _value(spec: TrainingSpec, name: str) -> Any:
    if name == "data" and isinstance(spec.data, TextData | ImageFiles):
        return spec.data.training_part()
    value: Any = spec
    for part in name.split("."):
        value = getattr(value, part)
    return value
