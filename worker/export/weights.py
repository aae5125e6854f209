"""Writes the export at the end of a run.

It is a whole model if all of it was trained or adapters are merged into it; else only the adapters or the trained
tensors, since the rest is the unchanged base model.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.export import ExportDtype, ExportKind
from trainyard.contract.wire.exported import EXPORT_NOTE
from worker.checkpoint.compatibility import changed_source
from worker.core.distributed import Ranks
from worker.core.errors import TrainingError
from worker.core.random_state import seed_generators
from worker.data.model_files import ModelFiles
from worker.engine.frozen_base import held_dtype
from worker.engine.sources import base_digest
from worker.engine.state import trained_state
from worker.engine.trainable import frozen_names
from worker.export.adapter import merged_weights, save_adapter
from worker.export.description import note_of, write_description
from worker.export.model import cast, save_model, save_tensors
from worker.tasks.base import Task

DTYPES: dict[ExportDtype, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def export_weights(
    folder: Path,
    module: nn.Module,
    spec: TrainingSpec,
    task: Task,
    step: int,
    ranks: Ranks,
    *,
    sources: Mapping[str, str] | None = None,
    metrics: Mapping[str, float] | None = None,
    job_id: str | None = None,
    roots: AllowedRoots = UNRESTRICTED_ROOTS,
) -> None:
    """Write the export, each file atomically. A collective; rank 0 writes.

    Args:
        sources: Digests of the run's inputs, as in the manifests of its checkpoints; used on rank 0.
        metrics: The metrics of this step, for the model card.
        roots: The roots below which the base model is read.

    Raises:
        TrainingError: On all ranks; adapters are to be merged into a base that has changed since the start of the run.
    """
    _require_same_base(spec, sources or {}, ranks, roots)
    weights = whole_weights(module)
    if not ranks.is_rank_0:
        return
    files = ModelFiles(spec.model.path, roots) if isinstance(spec.model, HfModel) else None
    base = files.folder if files else None
    with publish_folder(folder) as temporary:
        dtype, partial = default_dtype(spec), bool(frozen_names(module))
        kind = save_weights(
            temporary,
            weights,
            spec,
            lambda: _base(spec, task),
            partial=partial,
            dtype=DTYPES[dtype],
            classes=task.classes,
            base=base,
        )
        averaged = spec.ema is not None and spec.ema.export
        known = sources or {}
        note = note_of(kind, spec, step, dtype=dtype, sources=known, job_id=job_id, averaged=averaged, base=base)
        write_description(temporary, note, spec, metrics or {}, known, base)


def save_weights(
    folder: Path,
    weights: dict[str, Any],
    spec: TrainingSpec,
    build_base: Callable[[], nn.Module],
    *,
    partial: bool,
    dtype: torch.dtype = torch.float32,
    classes: Sequence[str] = (),
    base: Path | None = None,
) -> ExportKind:
    """Write the files of an export except its description, and return its kind.

    Args:
        weights: The trained tensors by name, and the model's buffers.
        build_base: Returns the model without adapters; called for adapters only. Merging changes it in place.
        partial: Whether the model has frozen parameters.
        classes: The names of the outputs of a model that classifies.
        dtype: The type of the written weights. Adapters are merged in their own type.
        base: The folder from which a Hugging Face model is read.
    """
    if is_merged(spec):
        merged = merged_weights(folder, weights, build_base(), spec)
        save_model(folder, cast(merged, dtype), spec, dtype, classes, base)
        return "model"
    weights = cast(weights, dtype)
    if spec.lora_rank is not None:
        save_adapter(folder, weights, build_base(), spec, classes, base)
        return "adapter"
    if partial:
        save_tensors(folder / "trained.safetensors", weights)
        return "trained"
    save_model(folder, weights, spec, dtype, classes, base)
    return "model"


def is_merged(spec: TrainingSpec) -> bool:
    """Return whether the export holds a base model with merged adapters."""
    return spec.lora_rank is not None and spec.lora.merge


def default_dtype(spec: TrainingSpec) -> ExportDtype:
    """Return the type of the weights if no other is requested: bf16 for a merged base held in fewer bits, else fp32."""
    return "bf16" if is_merged(spec) and held_dtype(spec) else "fp32"


def _require_same_base(spec: TrainingSpec, sources: Mapping[str, str], ranks: Ranks, roots: AllowedRoots) -> None:
    digest = base_digest(spec, roots) if ranks.is_rank_0 and is_merged(spec) else None
    changed = changed_source(sources, {"model.path": digest}, spec) if digest else None
    if (message := ranks.broadcast(changed)) is not None:
        raise TrainingError(f"{message} since the start of the run", "Restore it and retry the job.")


def _base(spec: TrainingSpec, task: Task) -> nn.Module:
    """Return the model without adapters: loaded or initialised again."""
    seed_generators(spec.seed)
    return task.build_model()


def whole_weights(module: nn.Module) -> dict[str, Any]:
    """Return the trained tensors on rank 0, in host memory, each under one name; other ranks get none. A collective.

    safetensors rejects two names of one storage, so a tied parameter has only its first name.
    """
    state = trained_state(module, whole=True)
    named = {name for name, _ in module.named_parameters()}
    aliases = {name for name, _ in module.named_parameters(remove_duplicate=False)} - named
    return {name: tensor for name, tensor in state.items() if name not in aliases}


@contextlib.contextmanager
def publish_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to write to. Its files are renamed into `folder` on exit, or removed after an error."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".writing-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        # safetensors ignores the umask, which the folder's mode has followed.
        mode = stat.S_IMODE(temporary.stat().st_mode) & 0o666
        # The description has the digests of the other files: it must not be there before them.
        files = [path for path in temporary.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: (path.name == EXPORT_NOTE, path)):
            path.chmod(mode)
            target = folder / path.relative_to(temporary)
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
