"""The trained weights for others to load: safetensors, and what they are the weights of."""

import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from trainyard.contract.layout import write_atomic
from trainyard.contract.spec import TrainingSpec


def export_weights(folder: Path, module: nn.Module, spec: TrainingSpec, step: int, *, first: bool) -> None:
    """Write `model.safetensors` and `config.json`, each whole or not at all. A collective; the first rank writes."""
    from safetensors.torch import save_file

    weights = whole_weights(module)
    if not first:
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".model.{os.getpid()}"
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, temporary, metadata={"format": "pt"})
    temporary.chmod(0o644)
    os.replace(temporary, folder / "model.safetensors")
    model = spec.model.model_dump(mode="json") if spec.model else None
    write_atomic(folder / "config.json", json.dumps({"task": spec.task, "model": model, "step": step}, indent=1))


def whole_weights(module: nn.Module) -> dict[str, Any]:
    """Every weight under one name, gathered in the first rank's memory; the other ranks get none. A collective.

    safetensors refuses two names of one storage; the first name stands for both.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    named = {name for name, _ in module.named_parameters()}
    aliases = {name for name, _ in module.named_parameters(remove_duplicate=False)} - named
    return {name: tensor for name, tensor in state.items() if name not in aliases}
