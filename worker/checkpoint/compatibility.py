"""Checks that a checkpoint fits the model that resumes from it."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from trainyard.contract.layout import CheckpointLayout
from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.text_data import TextData, paths_of
from trainyard.contract.spec.text_sources import listed_paths
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError

Shapes = Mapping[str, tuple[int, ...]]

_MODEL = "model."
_SHOWN = 5
_HINT = (
    "A run cannot change model, lora_rank, lora.targets or trainable between attempts. "
    "To change them, submit a new job."
)


STORED = "stored:"
"""Prefix of the digests of examples in files, which earlier releases took of the same examples in memory."""

CHANGED_SOURCE_HINT = (
    "Restore it and retry the job. To train on with the changed one, submit a new job with resume_from this job and "
    "resume: weights."
)


def changed_source(saved: Mapping[str, str], current: Mapping[str, str], spec: TrainingSpec) -> str | None:
    """Describe a source that differs from the checkpoint's, with the spec's field and its file; None if all are equal.
    Digests of earlier releases may be missing."""
    for name in ("model.path", "data", "data.shuffle", "reference"):
        if name in saved and name in current and saved[name] != current[name] and _comparable(saved, current, name):
            return _describe_change(name, spec)
    return None


def _comparable(saved: Mapping[str, str], current: Mapping[str, str], name: str) -> bool:
    return saved[name].startswith(STORED) == current[name].startswith(STORED)


def _describe_change(source: str, spec: TrainingSpec) -> str:
    if source == "model.path" and isinstance(spec.model, HfModel):
        return f"model.path: the frozen base model in {spec.model.path} has changed"
    if source == "reference":
        return "objective: the reference, which is the model before its first step, has changed"
    if source == "data.shuffle":
        return "data.shuffle: the order of the training examples has changed"
    if isinstance(spec.data, TextData):
        named = [path for _, path in paths_of(spec.data.training_part())]
        field = "data.path" if len(spec.data.training_sources) == 1 else "data.sources"
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""
        return f"{field}: the training examples in {', '.join(named[:3])}{more} have changed"
    if isinstance(spec.data, ImageFiles):
        named = [path for source in spec.data.training_sources.values() for path in listed_paths(source.path)]
        field = "data.sources" if spec.data.sources else "data.path"
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""
        return f"{field}: the training images in {', '.join(named[:3])}{more} have changed"
    return "data: the training examples have changed"


def stored_dtypes(checkpoint: CheckpointLayout) -> dict[str, torch.dtype]:
    """Return the type of every tensor of a checkpoint by its name."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    metadata = FileSystemReader(checkpoint.root).read_metadata().state_dict_metadata
    return {
        name: entry.properties.dtype for name, entry in metadata.items() if isinstance(entry, TensorStorageMetadata)
    }


def match_state(checkpoint: CheckpointLayout, state: dict[str, Any]) -> None:
    """Compare names and shapes of the model's tensors before anything is loaded. Remove from `state` the parts that
    another job's spec has added and the checkpoint lacks: the average of the weights, and its count.

    Raises:
        RefusedError: They differ; the message lists the differences.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    metadata = FileSystemReader(checkpoint.root).read_metadata().state_dict_metadata
    saved = {name: tuple(getattr(entry, "size", ())) for name, entry in metadata.items()}
    saved_shapes = {name.removeprefix(_MODEL): shape for name, shape in saved.items() if name.startswith(_MODEL)}
    model_shapes = {name: tuple(getattr(tensor, "shape", ())) for name, tensor in state["model"].items()}
    if problem := difference(saved_shapes, model_shapes):
        raise RefusedError(f"the checkpoint of step {checkpoint.step} does not fit the model: {problem}", _HINT)
    if any(f"ema.{name}" not in saved for name in state.get("ema", ())):
        del state["ema"], state["progress"]["ema_updates"]


def difference(saved: Shapes, model: Shapes) -> str | None:
    """Return a description of the differences, or None if there are none."""
    shared = saved.keys() & model.keys()
    shapes = [f"{name} ({saved[name]} instead of {model[name]})" for name in shared if saved[name] != model[name]]
    parts = (
        ("missing", model.keys() - saved.keys()),
        ("unexpected", saved.keys() - model.keys()),
        ("different shapes", shapes),
    )
    return "; ".join(f"{kind}: {_join_names(names)}" for kind, names in parts if names) or None


def _join_names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more
