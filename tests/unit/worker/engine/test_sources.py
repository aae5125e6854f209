"""Digests of the base, the examples and their order."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from trainyard.contract.spec.training_spec import parse_spec
from worker.data.examples import Examples
from worker.data.sampler import GlobalBatches
from worker.data.token_rows import RowExamples, Segment, build_token_rows
from worker.engine.sources import source_digests
from worker.tasks.base import Task

VALUES = torch.arange(12.0).reshape(6, 2)


def spec(**changes):
    data = {"source": "jsonl", "path": "/data/x.jsonl"}
    model = {"source": "hf", "path": "/models/x"}
    return parse_spec({"task": "causal_lm", "steps": 1, "model": model, "data": data, **changes})


def rows(*, tokens=(1, 2, 3), held_out=(7, 8)):
    segments = [[Segment(np.array(one, dtype=np.int32), np.ones(len(one), dtype=bool))] for one in (tokens, held_out)]
    return RowExamples((), 1, 1, rows=build_token_rows(segments), packed=True)


def digests(examples, seed=0, **changes):
    task = Task()
    task.examples = examples
    return source_digests(spec(**changes), task, GlobalBatches(examples.train, 1, seed=seed))


class TestExamples:
    @pytest.mark.parametrize(("change", "same"), [({"tokens": (1, 2, 4)}, False), ({"held_out": (7, 9)}, True)])
    def test_training_rows_count(self, change, same):
        assert (digests(rows())["data"] == digests(rows(**change))["data"]) is same

    def test_every_training_value_counts(self):
        changed = VALUES.clone()
        changed[3, 1] += 1
        expected = digests(Examples((VALUES,), train=4, held_out=2))["data"]
        assert digests(Examples((changed,), train=4, held_out=2))["data"] != expected
        assert digests(Examples((changed,), train=3, held_out=3)) == digests(Examples((VALUES,), train=3, held_out=3))

    def test_order_counts(self):
        examples = Examples((VALUES,), train=6, held_out=0)
        first, second = digests(examples), digests(examples, seed=1)
        assert first["data"] == second["data"]
        assert first["data.shuffle"] != second["data.shuffle"]

    def test_custom_task_may_make_other_examples(self):
        examples = Examples((VALUES,), train=6, held_out=0)
        assert "data" not in digests(examples, task="custom", target="a:b", model=None, data=None)


class TestBase:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "config.json").write_text("{}")
        save_file({"a": torch.ones(100), "b": torch.zeros(100)}, tmp_path / "model.safetensors")
        return tmp_path

    def digest(self, folder, **changes):
        changes = {"lora_rank": 4} | changes
        return digests(rows(), model={"source": "hf", "path": str(folder)}, **changes).get("model.path")

    def test_changed_weights_count(self, folder):
        before = self.digest(folder)
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors, folder / "model.safetensors")
        assert self.digest(folder) == before
        save_file(tensors | {"b": torch.ones(100)}, folder / "model.safetensors")
        assert self.digest(folder) != before

    def test_changed_configuration_counts(self, folder):
        before = self.digest(folder)
        (folder / "config.json").write_text('{"rope_theta": 1}')
        assert self.digest(folder) != before

    def test_other_files_do_not_count(self, folder):
        before = self.digest(folder)
        (folder / "README.md").write_text("x")
        assert self.digest(folder) == before

    def test_model_that_is_trained_wholly_has_no_base(self, folder):
        assert self.digest(folder, lora_rank=None) is None
        assert self.digest(folder, lora_rank=None, trainable=["*"]) is not None
