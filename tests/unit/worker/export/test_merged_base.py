"""Merged exports: the base must be that of the training, and the type of the weights follows how it was held."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import hf
from tests.support.checkpoints import export_request, save_checkpoint
from tests.support.ranks import single_rank
from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.training_spec import parse_spec
from worker.core.errors import RefusedError, TrainingError
from worker.engine.sources import base_digest
from worker.engine.trainable import freeze_parameters
from worker.export.checkpoint import export_checkpoint
from worker.export.weights import export_weights
from worker.tasks.base import Task
from worker.tasks.hf_model import HfFolder


@pytest.fixture
def base(tmp_path):
    return hf.save_llama(tmp_path / "llama", layers=1)


@pytest.fixture
def make_spec(base):
    def make(base_dtype="fp32", **lora):
        return parse_spec(
            {
                "task": "causal_lm",
                "steps": 9,
                "model": {"source": "hf", "path": str(base)},
                "data": {"source": "jsonl", "path": "/data/x.jsonl"},
                "lora_rank": 2,
                "lora": {"base_dtype": base_dtype, **lora},
            }
        )

    return make


def adapted(spec):
    module = HfFolder(spec.model.path).load(packed=False)
    freeze_parameters(spec, module)
    return module


def replace_weights(folder):
    path = folder / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(path).items()}, path, {"format": "pt"})


class TestExportOfACheckpoint:
    @pytest.fixture
    def export(self, make_spec, tmp_path):
        spec = make_spec()
        checkpoint = save_checkpoint(tmp_path, adapted(spec), sources={"model.path": base_digest(spec)})

        def run(**changes):
            return export_checkpoint(export_request(checkpoint, spec, tmp_path / "out", **changes), lambda _: None)

        return run

    def test_base_that_has_changed_is_refused(self, export, base, tmp_path):
        replace_weights(base)
        message = f"model.path: the frozen base model in {base} has changed since the checkpoint of step 7"
        with pytest.raises(RefusedError, match=f"^{message}$") as refused:
            export(merge=True)
        assert "--base" in refused.value.hint
        assert list((tmp_path / "out").iterdir()) == []

    def test_other_folder_must_hold_the_same_base(self, export, base, tmp_path):
        copy = shutil.copytree(base, tmp_path / "copy")
        replace_weights(copy)
        message = f"--base: the model in {copy} is not the frozen base model of the checkpoint of step 7"
        with pytest.raises(RefusedError, match=f"^{message}$"):
            export(merge=True, base=str(copy))

    def test_unchanged_copy_replaces_a_changed_base(self, export, base, tmp_path):
        copy = shutil.copytree(base, tmp_path / "copy")
        replace_weights(base)
        assert export(merge=True, base=str(copy)) == ("model", "fp32")

    def test_adapters_alone_do_not_depend_on_the_base(self, export, base):
        replace_weights(base)
        assert export()[0] == "adapter"


class TestExportOfARun:
    def run(self, spec, folder, module, sources, **options):
        task = Task()
        task.build_model = lambda: HfFolder(spec.model.path).load(packed=False)
        export_weights(folder, module, spec, task, 9, single_rank(), sources=sources, **options)

    @pytest.mark.parametrize("name", ["chat_template.jinja", "generation_config.json", "README.md"])
    def test_file_that_leads_out_of_the_roots_is_not_exported(self, make_spec, base, tmp_path, name):
        spec, roots = make_spec(), AllowedRoots(allowed=(str(base),))
        module = adapted(spec)
        (tmp_path / "secret").write_text("secret")
        (base / name).unlink(missing_ok=True)
        (base / name).symlink_to(tmp_path / "secret")
        with pytest.raises(RefusedError, match=rf"^model\.path: .*/{name} leads out of the folders"):
            self.run(spec, tmp_path / "export", module, {}, roots=roots)
        assert not (tmp_path / "export").exists()

    def test_base_that_changed_during_the_run_is_refused(self, make_spec, base, tmp_path):
        spec = make_spec(merge=True)
        module, sources = adapted(spec), {"model.path": base_digest(spec)}
        replace_weights(base)
        message = f"model.path: the frozen base model in {base} has changed since the start of the run"
        with pytest.raises(TrainingError, match=f"^{message}$") as failed:
            self.run(spec, tmp_path / "export", module, sources)
        assert not isinstance(failed.value, RefusedError)
        assert not (tmp_path / "export").exists()

    def test_unchanged_base_is_merged(self, make_spec, tmp_path):
        spec = make_spec(merge=True)
        self.run(spec, tmp_path / "export", adapted(spec), {"model.path": base_digest(spec)})
        assert json.loads((tmp_path / "export" / "export.json").read_text())["kind"] == "model"


@pytest.mark.parametrize(("base_dtype", "dtype"), [("nf4", torch.bfloat16), ("fp32", torch.float32)])
def test_default_type_is_that_of_the_export_of_a_run(make_spec, tmp_path, base_dtype, dtype):
    spec = make_spec(base_dtype, merge=True)
    module = adapted(spec)
    TestExportOfARun().run(spec, tmp_path / "of-run", module, {})
    checkpoint, updates = save_checkpoint(tmp_path, module), []
    export_checkpoint(export_request(checkpoint, spec, tmp_path / "of-checkpoint"), updates.append)
    for folder in ("of-run", "of-checkpoint"):
        weights = load_file(tmp_path / folder / "model.safetensors")
        assert {tensor.dtype for tensor in weights.values()} == {dtype}
    note = json.loads((tmp_path / "of-checkpoint" / "export.json").read_text())
    assert note["dtype"] == {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
