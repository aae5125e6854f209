"""Describes an export: export.json with the digests of its files, the model card, and a builtin model's config.json."""

import hashlib
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainyard.contract.model_input import DIGITS, ImageInput, VectorInput
from trainyard.contract.spec.decoders import GptModel, LlamaModel
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel, MlpModel
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.export import ExportDtype, ExportKind
from trainyard.contract.wire.exported import EXPORT_NOTE, MODEL_CARD, ExportNote
from trainyard.contract.wire.manifest import ManifestFile
from worker.checkpoint.digests import file_sha256
from worker.core.random_state import seed_generators
from worker.engine.frozen_base import held_dtype
from worker.export.card import BaseModelCard, license_of, model_card
from worker.export.embedding import text_vectors_of
from worker.tasks.builtin_models import build_builtin

_HASHING_THREADS = 4
_MAX_CARD_BYTES = 2**20
_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def note_of(
    kind: ExportKind,
    spec: TrainingSpec,
    step: int,
    *,
    dtype: ExportDtype,
    sources: Mapping[str, str],
    job_id: str | None = None,
    averaged: bool = False,
    base: Path | None = None,
) -> ExportNote:
    """Return the description of an export, without its files. `sources`: digests of the run's inputs;
    `base`: the folder from which a Hugging Face model is read."""
    return ExportNote(
        kind=kind,
        task=spec.task,
        model=spec.model.model_dump(mode="json") if spec.model else None,
        seed=spec.seed,
        step=step,
        job_id=job_id,
        dtype=dtype,
        averaged=averaged,
        trainable=list(spec.trainable or ()),
        base_dtype=spec.lora.base_dtype if held_dtype(spec) else None,
        base_digest=None if kind == "model" else _base_digest(spec, sources),
        input=input_of(spec),
        vectors=text_vectors_of(spec, base),
    )


def write_description(
    folder: Path,
    note: ExportNote,
    spec: TrainingSpec,
    metrics: Mapping[str, float],
    sources: Mapping[str, str],
    base: Path | None = None,
) -> None:
    """Write the description of a folder that holds the weights, and last export.json, with the digests of all files.
    `base`: see `note_of`."""
    if isinstance(spec.model, ConvnetModel | MlpModel) or spec.task_kind.has_own_code:
        fields = {"kind", "task", "model", "seed", "step", "input"}
        (folder / "config.json").write_text(note.model_dump_json(include=fields, exclude_none=True, indent=1))
    card = None if base is None else _read_base(base)
    (folder / MODEL_CARD).write_text(model_card(spec, note, metrics, sources, card))
    described = note.model_copy(update={"files": _digests(folder)})
    (folder / EXPORT_NOTE).write_text(described.model_dump_json(exclude_none=True, indent=1))


def module_digest(module: nn.Module) -> str:
    """Return the digest of a model's parameters and buffers: their names, types, shapes and values."""
    hashed = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _base_digest(spec: TrainingSpec, sources: Mapping[str, str]) -> str | None:
    """Return the digest of the base of adapters or trained tensors. The weights of a builtin model are drawn again."""
    if isinstance(spec.model, GptModel | LlamaModel | ConvnetModel | MlpModel):
        seed_generators(spec.seed)
        return module_digest(build_builtin(spec.model))
    return sources.get("model.path")


def _digests(folder: Path) -> dict[str, ManifestFile]:
    """Return sizes and digests of all files below a folder, by path. Hashing releases the interpreter's lock."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(_HASHING_THREADS) as threads:
        digests = threads.map(file_sha256, paths)
        return {
            path.relative_to(folder).as_posix(): ManifestFile(size=path.stat().st_size, sha256=digest)
            for path, digest in zip(paths, digests, strict=True)
        }


def _read_base(folder: Path) -> BaseModelCard:
    """Return the licence and the name that a model's folder states. A file that cannot be read is ignored."""
    name = _config_of(folder).get("_name_or_path")
    try:
        with (folder / MODEL_CARD).open(encoding="utf-8", errors="replace") as file:
            license_ = license_of(file.read(_MAX_CARD_BYTES))
    except OSError:
        license_ = None
    return BaseModelCard(license_, name if isinstance(name, str) and _HUB_NAME.fullmatch(name) else None)


def _config_of(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def input_of(spec: TrainingSpec) -> ImageInput | VectorInput | None:
    """Return the input of a spec's model; None if it reads text, or if the job's own code defines it."""
    match spec.model, spec.data:
        case ConvnetModel(), BuiltinData(name="digits"):
            return DIGITS
        case MlpModel(sizes=sizes), _:
            return VectorInput(size=sizes[0], outputs=sizes[-1])
    return None
