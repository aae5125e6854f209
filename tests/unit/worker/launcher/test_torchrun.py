"""The default environment of ranks on GPUs."""

import tempfile
from pathlib import Path

import pytest

from tests.unit.worker.launcher.test_nodes import SPEC, document
from trainyard.contract.spec.training_spec import parse_spec
from worker.launcher.torchrun import files_prefix, gpu_environment, remove_files

ATTEMPT = Path("/runs/job-1/attempts/1-a1")


def variables(base=None, given=None, backend="nccl"):
    spec = parse_spec({**SPEC, "backend": backend, "environment": {"variables": given or {}}})
    return gpu_environment(document(spec=spec), ATTEMPT, base or {})


def test_defaults_of_ranks_with_nccl():
    assert variables() == {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": "/runs/job-1/artifacts/flight_recorder/1-a1/rank_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }


def test_ranks_without_nccl_get_none():
    assert variables(backend="gloo") == {}


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
@pytest.mark.parametrize("where", ["base", "given"])
def test_either_name_of_the_allocator_setting_replaces_the_default(name, where):
    assert "PYTORCH_ALLOC_CONF" not in variables(**{where: {name: "max_split_size_mb:512"}})


def test_variables_that_are_set_have_precedence():
    chosen = variables({"TORCH_FR_BUFFER_SIZE": "50"}, {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"})
    assert chosen.keys() == {"PYTORCH_ALLOC_CONF", "TORCH_FR_DUMP_TEMP_FILE"}


def test_only_files_of_this_torchrun_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runs = [(ATTEMPT, 0), (ATTEMPT, 1), (ATTEMPT.with_name("2-b2"), 0)]
    folders = [Path(tempfile.mkdtemp(prefix=files_prefix(*run))) for run in runs]
    for folder in folders:
        (folder / "error.json").touch()
    remove_files(*runs[0])
    assert [folder.exists() for folder in folders] == [False, True, True]
