"""Writes a whole model: a Hugging Face folder, or one safetensors file for models that read no text."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainyard.contract.spec.decoders import BuiltinDecoder, GptModel, LlamaModel
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.loading.turn_end import end_tokens
from worker.data.parsed_records import padding_of
from worker.export.decoders import gpt2_weights, gpt_config, llama_config, save_byte_tokenizer
from worker.export.embedding import save_modules, text_vectors_of
from worker.tasks.hf_classifier import class_settings
from worker.tasks.hf_embedding import without_pooler

_OFFLINE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def save_model(
    folder: Path,
    weights: dict[str, Any],
    spec: TrainingSpec,
    dtype: torch.dtype = torch.float32,
    classes: Sequence[str] = (),
    base: Path | None = None,
) -> None:
    """Write all of a model's weights. `dtype` is the type of the weights, for config.json; `classes`: the names of the
    outputs of a model that classifies; `base`: the folder from which a Hugging Face model is read."""
    if base is not None:
        save_hf(folder, weights, spec, base, dtype, classes)
        return
    if isinstance(spec.model, GptModel | LlamaModel):
        save_decoder(folder, weights, spec.model, dtype)
        return
    save_tensors(folder / "model.safetensors", weights)


def save_decoder(folder: Path, weights: dict[str, Any], model: BuiltinDecoder, dtype: torch.dtype) -> None:
    """Write a builtin language model as a folder that transformers loads, with a tokenizer of bytes."""
    name = str(dtype).removeprefix("torch.")
    if isinstance(model, GptModel):
        config, weights = gpt_config(model, name), gpt2_weights(weights, model)
    else:
        config = llama_config(model, name)
    save_tensors(folder / "model.safetensors", weights)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_byte_tokenizer(folder, model.context)


def cast(weights: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Return the weights with floating point tensors in another dtype."""
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in weights.items()}


def save_tensors(path: Path, weights: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path, metadata={"format": "pt"})


def save_hf(
    folder: Path,
    weights: dict[str, Any],
    spec: TrainingSpec,
    base: Path,
    dtype: torch.dtype,
    classes: Sequence[str] = (),
) -> None:
    """Write a folder that `from_pretrained` loads, with the tokenizer or the image processor; large models are split
    into several files."""
    # A model without weights to save with: the trained model may be sharded, wrapped, or have adapters.
    shell = build_hf_shell(spec, base, dtype, classes)
    if spec.task_kind.writes_texts:
        shell.generation_config = generation_settings(base)
    shell.save_pretrained(folder, state_dict=weights)
    save_input(folder, spec, base)
    if (vectors := text_vectors_of(spec, base)) is not None:
        save_modules(folder, vectors)


def generation_settings(base: Path) -> Any:
    """Return the generation settings of a model that was trained from a base.

    They are the base's settings, and generated text ends with any token that ends an example in the training.
    """
    import transformers

    if (base / "generation_config.json").is_file():
        settings = transformers.GenerationConfig.from_pretrained(base, local_files_only=True)
    else:
        config = transformers.AutoConfig.from_pretrained(base, **_OFFLINE)
        settings = transformers.GenerationConfig.from_model_config(config)
    ends = end_tokens(load_tokenizer(base), settings.eos_token_id)
    settings.eos_token_id = ends[0] if len(ends) == 1 else ends or None
    return settings


def build_hf_shell(
    spec: TrainingSpec, base: Path, dtype: torch.dtype = torch.float32, classes: Sequence[str] = ()
) -> Any:
    """Return the model of a spec without weights, on the device `meta`. `base`: its folder; `classes`: the names of its
    outputs, for a task that classifies."""
    import transformers

    settings = class_settings(classes) if classes else {}
    config = transformers.AutoConfig.from_pretrained(base, **_OFFLINE, **settings)
    if hasattr(config, "quantization_config"):
        # The weights of the base were converted to whole weights, which are written.
        del config.quantization_config
    loader = getattr(transformers, spec.task_kind.transformers_class)
    with torch.device("meta"):
        shell = loader.from_config(config, dtype=dtype, trust_remote_code=False)
    if spec.task_kind.classifies and spec.task_kind.reads_texts:
        shell.config.pad_token_id = padding_of(load_tokenizer(base))
    elif spec.task_kind.makes_vectors:
        without_pooler(shell)
    return shell


def save_input(folder: Path, spec: TrainingSpec, base: Path) -> None:
    """Write the tokenizer or the image processor of a Hugging Face model."""
    load = load_image_processor if spec.task_kind.reads_images else load_tokenizer
    load(base).save_pretrained(folder)


def load_tokenizer(base: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(base, **_OFFLINE)


def load_image_processor(base: Path) -> Any:
    """Return the image processor of a folder, on Pillow as in the training."""
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(base, backend="pil", **_OFFLINE)
