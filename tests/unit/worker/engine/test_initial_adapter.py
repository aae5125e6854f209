"""An adapter from which a training starts is read below the allowed roots alone."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from worker.core.errors import RefusedError
from worker.engine.initial_adapter import read_adapter


@pytest.mark.parametrize(
    ("target", "reason"), [("root/.hidden", r"has the hidden name `\.hidden`"), ("out", "leads out")]
)
def test_link_to_another_file_is_refused(tmp_path: Path, target: str, reason: str) -> None:
    folder = tmp_path / "root" / "adapter"
    folder.mkdir(parents=True)
    (tmp_path / target).write_text("{}")
    (folder / "adapter_config.json").symlink_to(tmp_path / target)
    with pytest.raises(RefusedError, match=rf"^lora\.adapter: .*{reason}"):
        read_adapter(spec_of(folder), AllowedRoots(allowed=(str(tmp_path / "root"),)))


def test_file_that_is_replaced_after_the_check_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "root" / "adapter"
    folder.mkdir(parents=True)
    properties = {"peft_type": "LORA", "r": 8, "lora_alpha": 32.0}
    (folder / "adapter_config.json").write_text(json.dumps(properties))
    save_file({"own": torch.ones(1)}, folder / "adapter_model.safetensors")
    save_file({"secret": torch.ones(1)}, tmp_path / "secret")
    resolve = AllowedRoots.resolve

    def check_and_replace(roots: AllowedRoots, path: Path) -> Path:
        real = resolve(roots, path)
        if real.name == "adapter_model.safetensors":
            real.unlink()
            real.symlink_to(tmp_path / "secret")
        return real

    monkeypatch.setattr(AllowedRoots, "resolve", check_and_replace)
    tensors = read_adapter(spec_of(folder), AllowedRoots(allowed=(str(tmp_path / "root"),)))
    assert tensors is not None
    assert list(tensors) == ["own"]


def spec_of(folder: Path) -> TrainingSpec:
    document = {
        "task": "causal_lm",
        "steps": 1,
        "model": {"source": "hf", "path": "/model"},
        "data": {"source": "jsonl", "path": "/data"},
        "lora_rank": 8,
        "lora": {"adapter": str(folder)},
    }
    return parse_spec(document)
