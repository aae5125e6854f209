"""Writes trained adapters in peft's format, and merges them into the weights of their base model."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.exported import CLASSES
from worker.engine.adapter_rules import peft_name
from worker.engine.adapters import adapter_config, is_adapter
from worker.engine.frozen_base import held_dtype, round_base
from worker.export.embedding import save_modules, text_vectors_of
from worker.export.model import generation_settings, save_input, save_tensors


def save_adapter(
    folder: Path,
    weights: dict[str, Any],
    base: nn.Module,
    spec: TrainingSpec,
    classes: Sequence[str] = (),
    base_folder: Path | None = None,
) -> None:
    """Write a folder that `peft.PeftModel.from_pretrained` loads onto the base model. `classes`: the names of the
    outputs of a classifier, which are in no other file; `base_folder`: the folder of a Hugging Face model."""
    _write(folder, weights, base, spec)
    if classes:
        (folder / CLASSES).write_text(json.dumps(list(classes), ensure_ascii=False))
    if base_folder is not None:
        save_input(folder, spec, base_folder)
        if spec.task_kind.writes_texts:
            # peft does not read it, but programs that serve adapters can.
            generation_settings(base_folder).to_json_file(folder / "generation_config.json")
    if (vectors := text_vectors_of(spec, base_folder)) is not None:
        save_modules(folder, vectors)


def merged_weights(folder: Path, weights: dict[str, Any], base: nn.Module, spec: TrainingSpec) -> dict[str, Any]:
    """Return all weights of the model, W0 + (alpha / r) B A where it is adapted (arXiv:2106.09685). The base model is
    changed in place; `folder` is for temporary files.

    W0 has the values with which the adapters were trained, which also compensate for the rounding of `lora.base_dtype`.
    """
    from peft import PeftModel

    if (dtype := held_dtype(spec)) is not None:
        round_base(base, dtype)
    with TemporaryDirectory(dir=folder) as adapter:
        _write(Path(adapter), weights, base, spec)
        merged = PeftModel.from_pretrained(base, adapter).merge_and_unload()
    names = {name for name, _ in merged.named_parameters()} | {name for name, _ in merged.named_buffers()}
    return {name: tensor for name, tensor in merged.state_dict().items() if name in names}


def _write(folder: Path, weights: dict[str, Any], base: nn.Module, spec: TrainingSpec) -> None:
    config = adapter_config(base, spec)
    config.inference_mode = True
    config.save_pretrained(folder)
    named = {peft_name(name): tensor for name, tensor in weights.items() if is_adapter(name)}
    save_tensors(folder / "adapter_model.safetensors", named)
