"""Starting from another job's checkpoint: what `resume_from` names, and what of it two specs can share. Pure."""

import re
from typing import Any

from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import TrainingSpec

_FORM = re.compile(r"(job_[0-9a-z]{26})(?::([0-9]{1,10}))?")

TRAJECTORY = (
    *("task", "target", "code", "model", "data", "batch.size", "batch.last", "optimizer", "schedule", "precision"),
    *("amp", "tf32", "lora_rank", "lora.alpha", "lora.dropout", "lora.targets", "trainable", "seed", "health.on_nan"),
)
"""Two specs that agree in these make the same updates. Strategy and ranks are not among them: that is promise 1."""

_FITTING = ("task", "lora_rank", "lora.targets", "trainable")
"""And in these: the same parameters are trained, so that one's weights are the other's."""

_MODEL_FREE = {"dropout", "path"}
"""Of a model: what can differ while its parameters are the same ones. Whether another folder's are, its worker sees."""


def parse_origin(text: str) -> tuple[str, int | None] | None:
    """The job and, where it is named, the step; None for what names neither."""
    match = _FORM.fullmatch(text)
    return (match[1], int(match[2]) if match[2] else None) if match else None


def trajectory_differences(source: TrainingSpec, fork: TrainingSpec) -> list[str]:
    """The fields in which the fork's updates cannot be a continuation of the source's."""
    names = [name for name in TRAJECTORY if _value(source, name) != _value(fork, name)]
    if fork.schedule.name != "constant":
        # What the learning rate is at a step depends on how many there are.
        names += [name for name in ("steps", "epochs") if _value(source, name) != _value(fork, name)]
    return names


def incompatible_fields(source: TrainingSpec, fork: TrainingSpec) -> list[Problem]:
    """Fields that make the source's weights another model's."""
    names = [name for name in _FITTING if _value(source, name) != _value(fork, name)]
    ours, theirs = _plain(fork.model), _plain(source.model)
    names += [f"model.{key}" for key in sorted({*ours, *theirs} - _MODEL_FREE) if ours.get(key) != theirs.get(key)]
    return [
        Problem(param=name, message="differs from that of the job in `resume_from`, whose weights would not fit")
        for name in names
    ]


def _plain(section: Any) -> dict[str, Any]:
    return section.model_dump(mode="json") if section is not None else {}


def _value(spec: TrainingSpec, name: str) -> Any:
    names: Any = spec
    for part in name.split("."):
        names = getattr(names, part)
    return names
