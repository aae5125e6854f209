"""Makes an export of a checkpoint, without its run: in a single process, in host memory; it needs no GPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainyard.contract.layout import CheckpointLayout
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.export import ExportDtype, ExportKind, ExportRequest, ExportUpdate, needs_classes
from trainyard.contract.wire.manifest import Manifest
from worker.checkpoint.compatibility import changed_source, difference
from worker.checkpoint.digests import verify
from worker.checkpoint.tensors import ModelTensors
from worker.core.disk_space import require_room
from worker.core.errors import RefusedError
from worker.core.random_state import seed_generators
from worker.data.model_files import ModelFiles
from worker.engine.adapters import is_adapter
from worker.engine.sources import base_digest
from worker.export.description import note_of, write_description
from worker.export.model import build_hf_shell
from worker.export.weights import DTYPES, default_dtype, is_merged, save_weights
from worker.tasks.builtin_models import build_builtin

_BATCH_BYTES = 2**29
"""Tensors are read in batches of this size, for progress and because a batch exists in two dtypes."""

Report = Callable[[ExportUpdate], None]


def export_checkpoint(request: ExportRequest, report: Report) -> tuple[ExportKind, ExportDtype]:
    """Write the export of a checkpoint into an empty folder. Return its kind, and the type of its weights.

    Raises:
        RefusedError: The checkpoint, the base model or the spec does not permit it; the message says why.
        OSError: A file could not be read or written.
    """
    spec = _read_spec(request)
    files = ModelFiles(spec.model.path) if isinstance(spec.model, HfModel) else None
    base = files.folder if files else None
    checkpoint = CheckpointLayout(Path(request.checkpoint))
    report(ExportUpdate(phase="verifying"))
    dtype_name, merging = request.dtype or default_dtype(spec), is_merged(spec)
    dtype = DTYPES[dtype_name]
    folder = Path(request.output)
    with _noticed_deletion(checkpoint):
        manifest, tensors = _verified_tensors(checkpoint)
        _require_classes(manifest, spec)
        shell = _build_shell(spec, base, manifest.classes)
        if merging:
            _require_same_base(manifest, spec, moved=request.base is not None)
        names = _chosen_names(tensors, spec, shell)
        needed = _written_bytes(tensors, names, shell if merging else None, dtype)
        require_room(folder.parent, needed, "the export", "Name another folder with --output.")
        averaged = spec.ema is not None and spec.ema.export and tensors.has_average
        weights = _read(tensors, names, torch.float32 if merging else dtype, report, averaged=averaged)
    report(ExportUpdate(phase="merging" if merging else "writing"))
    kind = save_weights(
        folder,
        weights,
        spec,
        lambda: build_base(spec, manifest.classes) if merging else _require_shell(shell),
        partial=spec.trainable is not None,
        dtype=dtype,
        classes=manifest.classes,
        base=base,
    )
    note = note_of(
        kind,
        spec,
        request.step,
        dtype=dtype_name,
        sources=manifest.sources,
        job_id=request.job_id,
        averaged=averaged,
        base=base,
    )
    write_description(folder, note, spec, manifest.metrics, manifest.sources, base)
    return kind, dtype_name


def _read_spec(request: ExportRequest) -> TrainingSpec:
    """Return the job's spec with the changes that the request makes."""
    try:
        spec = parse_stored_spec(request.spec)
    except SpecError as error:
        raise RefusedError(f"this release does not read the job's spec: {error}") from None
    if request.merge:
        spec = spec.model_copy(update={"lora": spec.lora.model_copy(update={"merge": True})})
    if request.base is not None:
        spec = spec.model_copy(update={"model": HfModel(path=request.base)})
    if isinstance(spec.model, HfModel) and not (Path(spec.model.path) / "config.json").is_file():
        raise RefusedError(
            f"the folder of the base model, {spec.model.path}, cannot be read on this machine",
            "Name a copy of it with --base.",
        )
    return spec


@contextmanager
def _noticed_deletion(checkpoint: CheckpointLayout) -> Iterator[None]:
    """Replace an error by its cause if the checkpoint is deleted meanwhile, as a run does with old checkpoints: the
    manifest is deleted first."""
    try:
        yield
    except (OSError, RefusedError):
        if checkpoint.manifest.is_file():
            raise
        raise RefusedError("the checkpoint has been deleted", "Choose another one.") from None


def _verified_tensors(checkpoint: CheckpointLayout) -> tuple[Manifest, ModelTensors]:
    try:
        manifest = Manifest.model_validate_json(checkpoint.manifest.read_bytes())
        verify(checkpoint, manifest)
        return manifest, ModelTensors(checkpoint, manifest.files.keys())
    except ValueError as error:
        raise RefusedError(f"the checkpoint is damaged: {error}", "Choose another one.") from None


def _require_classes(manifest: Manifest, spec: TrainingSpec) -> None:
    """Raise RefusedError if the model classifies and an earlier release wrote the checkpoint without the classes."""
    if not manifest.classes and needs_classes(spec.model_dump(mode="json", include={"task", "data"})):
        raise RefusedError(
            f"the checkpoint of step {manifest.step} was written by an earlier release, without the names of the "
            "classes",
            "Use the export that the job wrote at its end, or a checkpoint that this release writes, such as that of a "
            f"new job with resume_from {manifest.job_id}:{manifest.step}.",
        )


def _require_same_base(manifest: Manifest, spec: TrainingSpec, *, moved: bool) -> None:
    """`moved`: whether the request names the folder of the base model."""
    digest = base_digest(spec)
    changed = changed_source(manifest.sources, {"model.path": digest}, spec) if digest else None
    if changed is None:
        return
    if moved:
        assert isinstance(spec.model, HfModel)
        message = f"--base: the model in {spec.model.path} is not the frozen base model of the checkpoint"
        raise RefusedError(f"{message} of step {manifest.step}", "Name an unchanged copy of the base model.")
    message = f"{changed} since the checkpoint of step {manifest.step}"
    raise RefusedError(message, "Restore it, or name an unchanged copy with --base.")


def _build_shell(spec: TrainingSpec, base: Path | None, classes: Sequence[str]) -> nn.Module | None:
    """Return the model without weights, or None if it is defined by the job's own code. `base`: the folder of a Hugging
    Face model; `classes`: the names of its outputs, if it classifies."""
    if spec.task_kind.has_own_code or spec.model is None:
        return None
    if base is not None:
        shell: nn.Module = build_hf_shell(spec, base, classes=classes)
        return shell
    assert not isinstance(spec.model, HfModel)
    with torch.device("meta"):
        return build_builtin(spec.model)


def _require_shell(shell: nn.Module | None) -> nn.Module:
    if shell is None:
        raise RefusedError(
            "the model of a `custom` task is defined by the job's code, which is not run here, so that its adapters "
            "cannot be described",
            "Download the checkpoint, or let a job that continues it write its export at the end.",
        )
    return shell


def _chosen_names(tensors: ModelTensors, spec: TrainingSpec, shell: nn.Module | None) -> list[str]:
    """Return the names of the tensors to export; a tied parameter has a single name.

    Raises:
        RefusedError: They do not fit the model.
    """
    shapes = tensors.shapes
    if spec.lora_rank is not None:
        _require_shell(shell)
        return [name for name in shapes if is_adapter(name)]
    if shell is None:
        return list(shapes)
    expected = {name: tuple(tensor.shape) for name, tensor in shell.state_dict().items()}
    if spec.trainable is not None:
        expected = {name: shape for name, shape in expected.items() if name in shapes}
    if problem := difference(shapes, expected):
        raise RefusedError(f"the checkpoint does not fit the model: {problem}")
    named = {name for name, _ in shell.named_parameters()}
    aliases = {name for name, _ in shell.named_parameters(remove_duplicate=False)} - named
    return [name for name in shapes if name not in aliases]


def _written_bytes(tensors: ModelTensors, names: list[str], merged: nn.Module | None, dtype: torch.dtype) -> int:
    """Return about how many bytes the export takes."""
    if merged is not None:
        return sum(parameter.numel() for parameter in merged.parameters()) * dtype.itemsize
    return sum(tensors.bytes_of(name) for name in names) * dtype.itemsize // torch.float32.itemsize


def _read(
    tensors: ModelTensors, names: list[str], dtype: torch.dtype, report: Report, *, averaged: bool
) -> dict[str, Any]:
    weights: dict[str, Any] = {}
    total, done = sum(map(tensors.bytes_of, names)), 0
    for batch in _batches(tensors, names):
        report(ExportUpdate(phase="reading", bytes_done=done, bytes_total=total))
        for name, tensor in tensors.read(batch, averaged=averaged).items():
            weights[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        done += sum(map(tensors.bytes_of, batch))
    report(ExportUpdate(phase="reading", bytes_done=done, bytes_total=total))
    return weights


def _batches(tensors: ModelTensors, names: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in names:
        if batch and size + tensors.bytes_of(name) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += tensors.bytes_of(name)
    if batch:
        yield batch


def build_base(spec: TrainingSpec, classes: Sequence[str] = ()) -> nn.Module:
    """Return the base model with its weights. The head of a classifier, which is a part of the adapters, has any.

    Args:
        classes: The names of the outputs of a model that classifies.
    """
    assert spec.model is not None
    seed_generators(spec.seed)
    if not isinstance(spec.model, HfModel):
        return build_builtin(spec.model)
    from worker.data.parsed_records import padding_of
    from worker.tasks.hf_classifier import load_image_classifier, load_text_classifier
    from worker.tasks.hf_embedding import load_embedding
    from worker.tasks.hf_model import HfFolder

    folder = HfFolder(spec.model.path)
    task = spec.task_kind
    if task.makes_vectors:
        return load_embedding(folder, spec.embedding.pooling)
    if task.classifies and task.reads_texts:
        return load_text_classifier(folder, classes, padding_of(folder.tokenizer))
    if task.classifies:
        return load_image_classifier(folder, classes)
    return folder.load(packed=False)
