"""Writes a whole model: a Hugging Face folder, or one safetensors file for the other built-in models."""

from pathlib import Path
from typing import Any

import torch

from trainyard.contract.spec.sections import HfModel, LlamaModel
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.export.llama import save_llama_files


def save_model(folder: Path, weights: dict[str, Any], spec: TrainingSpec) -> None:
    """Write all of a model's weights."""
    if isinstance(spec.model, HfModel):
        save_hf(folder, weights, spec.model.path)
        return
    save_tensors(folder / "model.safetensors", weights)
    if isinstance(spec.model, LlamaModel):
        save_llama_files(folder, spec.model)


def save_tensors(path: Path, weights: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path, metadata={"format": "pt"})


def save_hf(folder: Path, weights: dict[str, Any], base: str) -> None:
    """Write a folder that `from_pretrained` loads, with the tokenizer; large models are split into several files."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(base, local_files_only=True)
    # A model without weights to save with: the trained model may be sharded, wrapped, or have adapters.
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if (Path(base) / "generation_config.json").is_file():
        shell.generation_config = GenerationConfig.from_pretrained(base, local_files_only=True)
    shell.save_pretrained(folder, state_dict=weights)
    save_tokenizer(folder, base)


def save_tokenizer(folder: Path, base: str) -> None:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(base, local_files_only=True).save_pretrained(folder)
