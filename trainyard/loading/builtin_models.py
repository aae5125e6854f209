"""Loads exports of the builtin models, which the worker's package builds."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from trainyard.contract.spec.decoders import GptModel, LlamaModel
from trainyard.contract.spec.sections import ConvnetModel, MlpModel, Model
from trainyard.contract.wire.exported import ExportNote
from trainyard.loading.errors import LoadError
from worker.core.random_state import seed_generators
from worker.export.description import module_digest
from worker.export.model import save_decoder
from worker.tasks.builtin_models import build_builtin

Builtin = GptModel | LlamaModel | ConvnetModel | MlpModel


def load_network(folder: Path, note: ExportNote) -> nn.Module:
    """Return a builtin model that reads no text."""
    model = _model_of(note)
    if note.kind != "model":
        return _completed(folder, note, model)
    with torch.device("meta"):
        network = build_builtin(model)
    network.load_state_dict(_weights(folder / "model.safetensors"), assign=True)
    return network


def write_completed(folder: Path, note: ExportNote) -> "TemporaryDirectory[str]":
    """Return a temporary folder with the whole builtin language model that adapters or trained tensors belong to."""
    model = _model_of(note)
    assert isinstance(model, GptModel | LlamaModel)
    state = dict(_completed(folder, note, model).named_parameters())
    target = TemporaryDirectory(prefix="trainyard-")
    save_decoder(Path(target.name), {name: tensor.detach() for name, tensor in state.items()}, model, torch.float32)
    return target


def _completed(folder: Path, note: ExportNote, model: Builtin) -> nn.Module:
    """Return the base, which is drawn from the seed again, with the adapters merged or the trained tensors."""
    seed_generators(note.seed)
    base = build_builtin(model)
    if note.base_digest is not None and module_digest(base) != note.base_digest:
        raise LoadError(
            "the frozen parameters of the builtin model cannot be drawn again from the seed with torch "
            f"{torch.__version__}; use the torch of the training, or export with merged adapters: trainyard export "
            f"{note.job_id or 'JOB'} --merge"
        )
    if note.kind == "trained":
        missing = base.load_state_dict(_weights(folder / "trained.safetensors"), strict=False)
        if missing.unexpected_keys:
            raise LoadError(f"trained.safetensors does not fit the model: it has {missing.unexpected_keys[0]}")
        return base
    from peft import PeftModel

    merged: nn.Module = PeftModel.from_pretrained(base, str(folder)).merge_and_unload()
    return merged


def _model_of(note: ExportNote) -> Builtin:
    model: Any = TypeAdapter(Model).validate_python(note.model)
    assert isinstance(model, Builtin)
    return model


def _weights(path: Path) -> dict[str, Any]:
    try:
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise LoadError(f"cannot read {path}: {error}") from None
