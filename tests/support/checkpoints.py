"""Makes checkpoints as a run does, on one process and without training."""

import hashlib
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainyard.contract.layout import CheckpointLayout, RunLayout
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec, parse_spec
from trainyard.contract.wire.export import ExportRequest
from trainyard.contract.wire.manifest import Manifest, ManifestFile
from worker.engine.half_parameters import low_halves
from worker.engine.state import trained_state


def save_checkpoint(
    folder: Path,
    module: nn.Module,
    step: int = 7,
    average: dict[str, torch.Tensor] | None = None,
    updates: int = 1,
    sources: dict[str, str] | None = None,
) -> CheckpointLayout:
    """Save a module's trained tensors, and something of an optimizer's state, with a manifest. `average`: that of the
    weights after some updates. `sources`: the manifest's digests of what the model was trained from."""
    from torch.distributed.checkpoint import state_dict_saver

    model = trained_state(module)
    state: dict[str, Any] = {
        "model": model,
        "optimizer": {f"state.{name}.exp_avg": torch.zeros_like(tensor) for name, tensor in model.items()},
        "progress": {"step": torch.tensor(step)},
    }
    if halves := low_halves(module):
        state["low_halves"] = halves
    if average is not None:
        state["ema"] = average
        state["progress"]["ema_updates"] = torch.tensor(updates)
    checkpoint = CheckpointLayout(folder / f"step-{step:010d}")
    state_dict_saver.save(state, checkpoint_id=checkpoint.root, no_dist=True)
    write_manifest(checkpoint, sources)
    return checkpoint


def write_manifest(checkpoint: CheckpointLayout, sources: dict[str, str] | None = None) -> None:
    """Write the manifest of the files that are in the folder."""
    files = {
        path.name: ManifestFile(size=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        for path in checkpoint.root.iterdir()
        if path != checkpoint.manifest
    }
    manifest = Manifest(
        job_id="a1",
        step=checkpoint.step,
        execution=1,
        attempt=1,
        world_size=1,
        strategy="single",
        files=files,
        sources=sources or {},
        created_at=datetime.now(UTC),
    )
    checkpoint.manifest.write_text(manifest.model_dump_json())


def export_request(checkpoint: CheckpointLayout, spec: TrainingSpec, output: Path, **changes: Any) -> ExportRequest:
    output.mkdir()
    return ExportRequest(
        job_id="a1",
        step=checkpoint.step,
        spec=dump_spec(spec),
        checkpoint=str(checkpoint.root),
        output=str(output),
        **changes,
    )


def convert_checkpoint(run: Path, spec: dict[str, Any], output: Path, step: int, **changes: Any) -> Path:
    """Export a run's checkpoint as `trainyard export` does, and return the folder."""
    from worker.export.checkpoint import export_checkpoint

    checkpoint = RunLayout(run).checkpoint(step)
    export_checkpoint(export_request(checkpoint, parse_spec(spec), output, **changes), lambda update: None)
    return output


def copied_without_classes(run: Path, copy: Path, step: int) -> Path:
    """Copy a run with a checkpoint as former releases wrote them, and return the copy."""
    source, target = RunLayout(run).checkpoint(step), RunLayout(copy).checkpoint(step)
    shutil.copytree(source.root, target.root)
    manifest = Manifest.model_validate_json(source.manifest.read_bytes())
    target.manifest.write_text(manifest.model_dump_json(exclude={"classes"}))
    return copy
