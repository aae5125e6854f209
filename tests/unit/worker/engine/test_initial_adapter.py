"""An adapter from which a training starts is read below the allowed roots alone."""

from pathlib import Path

import pytest

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.training_spec import parse_spec
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
    document = {
        "task": "causal_lm",
        "steps": 1,
        "model": {"source": "hf", "path": "/model"},
        "data": {"source": "jsonl", "path": "/data"},
        "lora_rank": 8,
        "lora": {"adapter": str(folder)},
    }
    with pytest.raises(RefusedError, match=rf"^lora\.adapter: .*{reason}"):
        read_adapter(parse_spec(document), AllowedRoots(allowed=(str(tmp_path / "root"),)))
