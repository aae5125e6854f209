"""The trained weights for others to load: safetensors, and what they are the weights of."""

import json
import os
from pathlib import Path

import torch
from torch import nn

from trainyard.contract.layout import write_atomic
from trainyard.contract.spec import TrainingSpec


def export_weights(folder: Path, module: nn.Module, spec: TrainingSpec, step: int) -> None:
    """Write `model.safetensors` and `config.json`, each whole or not at all."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".model.{os.getpid()}"
    save_file(_unshared(module), temporary, metadata={"format": "pt"})
    temporary.chmod(0o644)
    os.replace(temporary, folder / "model.safetensors")
    model = spec.model.model_dump(mode="json") if spec.model else None
    write_atomic(folder / "config.json", json.dumps({"task": spec.task, "model": model, "step": step}, indent=1))


def _unshared(module: nn.Module) -> dict[str, torch.Tensor]:
    """safetensors refuses two names of one storage; the first name stands for both."""
    kept: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in module.state_dict().items():
        if tensor.data_ptr() in seen and tensor.numel():
            continue
        seen.add(tensor.data_ptr())
        kept[name] = tensor.detach().cpu().contiguous()
    return kept
