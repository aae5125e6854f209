"""The planner's upper bound of a checkpoint's size, for small models, where overhead dominates."""

import pytest

from service.plugins.planner import builtin_models
from service.plugins.planner.host_and_disk import disk_need
from service.plugins.planner.trainable_parameters import TrainableModel, trainable_model
from tests.integration.worker.harness import run_layout
from trainyard.contract.spec.templates import load_template
from trainyard.contract.spec.training_spec import parse_spec

BLOCK = 4096


def spec(strategy, ranks):
    document = {**load_template("mlp_parity").spec, "strategy": strategy, "gpus": ranks, "optimizer": {"name": "adamw"}}
    del document["epochs"]
    return {**document, "steps": 3, "model": {"source": "builtin", "name": "mlp", "sizes": [2, 16, 16, 3]}}


def on_disk(folder):
    """Return the disk use of a folder in bytes, in whole blocks per file."""
    return sum(-(-file.stat().st_size // BLOCK) * BLOCK for file in folder.iterdir())


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_checkpoint_is_no_larger_than_planned(ranks, tmp_path):
    strategies = ["single"] if ranks == 1 else ["ddp", "fsdp"]
    cases = {name: {"spec": spec(name, ranks), "run": f"run-{name}"} for name in strategies}
    run_layout(ranks, cases, tmp_path / "out", seconds=300)
    for name in strategies:
        parsed = parse_spec(cases[name]["spec"])
        trainable = trainable_model(builtin_models.structure_of(parsed.model), parsed)
        assert isinstance(trainable, TrainableModel)
        planned = disk_need(parsed, trainable).checkpoint_bytes
        [folder] = (tmp_path / f"run-{name}" / "checkpoints").iterdir()
        assert 0.5 * planned < on_disk(folder) <= planned
