"""Makes exports of models that no job has trained: with changed parameters, so that their outputs differ."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.support.checkpoints import export_request, save_checkpoint
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from worker.core.random_state import seed_generators
from worker.engine.sources import base_digest
from worker.engine.trainable import freeze_parameters
from worker.export.checkpoint import export_checkpoint
from worker.tasks.builtin_models import build_builtin
from worker.tasks.hf_model import HfFolder

DECODER = {"layers": 2, "width": 32, "heads": 4, "context": 64}


def spec_of(name: str, **changes: Any) -> TrainingSpec:
    """Return the spec of a small builtin model; `changes` are fields of the spec, or of its model as `model_...`."""
    tasks = {"convnet": "image_classification", "mlp": "regression"}
    sizes: dict[str, dict[str, Any]] = {"convnet": {"channels": 4}, "mlp": {"sizes": [4, 8, 3]}}
    data = {"convnet": "digits", "mlp": "parity"}.get(name, "stdlib")
    model = {"source": "builtin", "name": name, **sizes.get(name, DECODER)}
    model |= {key.removeprefix("model_"): value for key, value in changes.items() if key.startswith("model_")}
    fields = {key: value for key, value in changes.items() if not key.startswith("model_")}
    spec = {"task": tasks.get(name, "causal_lm"), "model": model, "data": {"source": "builtin", "name": data}}
    return parse_spec({**spec, "steps": 9, "seed": 4} | fields)


def hf_spec(folder: Path, **changes: Any) -> TrainingSpec:
    """Return the spec of a job that fine-tunes the model of a folder."""
    model, data = {"source": "hf", "path": str(folder)}, {"source": "jsonl", "path": "/data/x.jsonl"}
    return parse_spec({"task": "causal_lm", "model": model, "data": data, "steps": 9, "seed": 4} | changes)


def trained_module(spec: TrainingSpec) -> nn.Module:
    """Return the model of a spec with changed trained parameters."""
    seed_generators(spec.seed)
    assert spec.model is not None
    folder = spec.model.path if isinstance(spec.model, HfModel) else None
    module: nn.Module = HfFolder(folder).load(packed=False) if folder else build_builtin(spec.model)  # type: ignore[arg-type]
    freeze_parameters(spec, module)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


def make_export(folder: Path, spec: TrainingSpec, module: nn.Module, **request: Any) -> Path:
    """Export a module as `trainyard export` does, and return the folder."""
    digest = base_digest(spec)
    checkpoint = save_checkpoint(folder, module, sources={"model.path": digest} if digest else None)
    export_checkpoint(export_request(checkpoint, spec, folder / "export", **request), lambda update: None)
    return folder / "export"
