"""Exports of checkpoints: transformers and peft load them, and what does not fit is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from tests.support import hf
from tests.support.checkpoints import export_request, save_checkpoint, write_manifest
from trainyard.contract.spec.training_spec import parse_spec
from worker.core.errors import RefusedError
from worker.core.random_state import seed_generators
from worker.engine.frozen_base import hold_base
from worker.engine.half_parameters import split_parameters
from worker.engine.trainable import freeze_parameters
from worker.export import checkpoint as conversion
from worker.export.checkpoint import export_checkpoint
from worker.tasks.builtin_models import build_builtin
from worker.tasks.hf_model import HfFolder

TOKENS = torch.arange(24).view(2, 12) * 7 % 200
LLAMA = {"source": "builtin", "name": "llama", "layers": 2, "width": 16, "heads": 4, "key_value_heads": 2, "vocab": 257}


def spec_of(model, **changes):
    data = {"source": "jsonl", "path": "/data/x.jsonl"}
    return parse_spec({"task": "causal_lm", "model": model, "data": data, "steps": 9, "seed": 5} | changes)


def trained_module(spec):
    """Return the model of a spec with changed trained parameters."""
    seed_generators(spec.seed)
    module = HfFolder(spec.model.path).load(packed=False) if spec.model.source == "hf" else build_builtin(spec.model)
    freeze_parameters(spec, module)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return module.eval()


def exported(tmp_path, spec, module, **changes):
    """Return the folder of the export, what it is, and the phases of the conversion."""
    checkpoint = save_checkpoint(tmp_path, module)
    updates = []
    kind, _ = export_checkpoint(export_request(checkpoint, spec, tmp_path / "export", **changes), updates.append)
    return tmp_path / "export", kind, [update.phase for update in updates]


@torch.no_grad()
def logits_of(model):
    result = model(TOKENS)
    return result if isinstance(result, torch.Tensor) else result.logits


def load(folder, **options):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return hf.save_llama(tmp_path_factory.mktemp("base") / "llama", tied=True)


def quantized_copy(base, folder, method):
    """Copy a model's folder, and state that its weights are quantized."""
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": method}}))
    return folder


@pytest.fixture
def hf_spec(base):
    return lambda **changes: spec_of({"source": "hf", "path": str(base)}, **changes)


class TestWholeModels:
    @pytest.mark.parametrize("tied", [True, False])
    def test_builtin_llama(self, tmp_path, tied):
        spec = spec_of(LLAMA | {"tied": tied})
        module = trained_module(spec)
        folder, kind, phases = exported(tmp_path, spec, module)
        assert (logits_of(load(folder)) - logits_of(module)).abs().max() <= 1e-5
        note = json.loads((folder / "export.json").read_text())
        assert (kind, note["step"], note["job_id"], note["dtype"]) == ("model", 7, "a1", "fp32")
        assert phases == ["verifying", "reading", "reading", "writing"]

    @pytest.mark.parametrize("dtype", ["fp32", "bf16"])
    def test_hf_model_with_tied_weights(self, tmp_path, hf_spec, dtype):
        spec = hf_spec()
        module = trained_module(spec)
        folder, _, _ = exported(tmp_path, spec, module, dtype=dtype)
        for parameter in module.parameters():
            parameter.data = parameter.data.to(conversion.DTYPES[dtype]).float()
        assert torch.equal(logits_of(load(folder)), logits_of(module))
        config = json.loads((folder / "config.json").read_text())
        assert config["dtype"] == {"fp32": "float32", "bf16": "bfloat16"}[dtype]
        assert (folder / "tokenizer.json").is_file()

    def test_parameters_in_bf16_are_exported_with_their_exact_values(self, tmp_path):
        spec = spec_of(LLAMA, precision="bf16", param_dtype="bf16")
        module = trained_module(spec)
        expected = logits_of(module)
        split_parameters(module, "fp32")
        folder, _, _ = exported(tmp_path, spec, module)
        assert (logits_of(load(folder)) - expected).abs().max() <= 1e-5

    def test_bf16_halves_the_file(self, tmp_path):
        spec = spec_of(LLAMA)
        folder, _, _ = exported(tmp_path, spec, trained_module(spec), dtype="bf16")
        model = load(folder)
        assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
        elements = sum(parameter.numel() for parameter in model.parameters())
        assert 2 * elements <= (folder / "model.safetensors").stat().st_size <= 2 * elements + 4096

    def test_base_that_was_quantized_is_exported_as_a_whole_model(self, tmp_path, base):
        quantized = quantized_copy(base, tmp_path / "quantized", "fp8")
        spec = spec_of({"source": "hf", "path": str(quantized)})
        module = trained_module(spec)
        folder, kind, _ = exported(tmp_path, spec, module)
        assert kind == "model"
        assert "quantization_config" not in json.loads((folder / "config.json").read_text())
        assert torch.equal(logits_of(load(folder)), logits_of(module))

    def test_other_builtin_model(self, tmp_path):
        spec = parse_spec(
            {
                "task": "regression",
                "steps": 1,
                "model": {"source": "builtin", "name": "mlp", "sizes": [4, 8, 3]},
                "data": {"source": "builtin", "name": "parity"},
            }
        )
        module = trained_module(spec)
        folder, _, _ = exported(tmp_path, spec, module)
        weights = load_file(folder / "model.safetensors")
        assert all(torch.equal(weights[name], value) for name, value in module.state_dict().items())


class TestAverageOfTheWeights:
    @pytest.mark.parametrize(
        ("ema", "updates", "averaged"), [({}, 3, True), ({"export": False}, 3, False), ({}, 0, False)]
    )
    def test_export_is_the_average_as_at_the_end_of_a_run(self, tmp_path, ema, updates, averaged):
        spec = spec_of(LLAMA | {"tied": True}, ema=ema)
        module = trained_module(spec)
        average = {name: torch.randn_like(parameter) for name, parameter in module.named_parameters()}
        checkpoint = save_checkpoint(tmp_path, module, average=average, updates=updates)
        export_checkpoint(export_request(checkpoint, spec, tmp_path / "export"), lambda _: None)
        weights = load_file(tmp_path / "export" / "model.safetensors")
        expected = average if averaged else dict(module.named_parameters())
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], value) for name, value in expected.items())
        assert json.loads((tmp_path / "export" / "export.json").read_text())["averaged"] is averaged


class TestPartsOfModels:
    @pytest.mark.parametrize("source", ["hf", "builtin"])
    def test_adapters_load_with_peft(self, tmp_path, hf_spec, source):
        from peft import PeftModel

        changes = {"lora_rank": 2, "lora": {"alpha": 16}}
        spec = hf_spec(**changes) if source == "hf" else spec_of(LLAMA, **changes)
        module = trained_module(spec)
        folder, kind, _ = exported(tmp_path, spec, module)
        seed_generators(spec.seed)
        bare = load(spec.model.path) if source == "hf" else build_builtin(spec.model)
        assert kind == "adapter"
        assert torch.equal(logits_of(PeftModel.from_pretrained(bare, folder).eval()), logits_of(module))

    @pytest.mark.parametrize(
        ("loader", "lora"),
        [
            ("peft", {"dora": True, "rank_pattern": {"q_proj": 1, "*.1.*": 3}, "alpha_pattern": {"v_proj": 3}}),
            ("peft", {"rslora": True, "targets": ["*.1.mlp.*_proj"], "rank_pattern": {"down_proj": 4}}),
            # transformers leaves the norms of DoRA out, of files that peft writes too.
            ("transformers", {"rslora": True, "targets": ["*.1.mlp.*_proj"], "rank_pattern": {"down_proj": 4}}),
        ],
    )
    def test_folder_of_adapters_loads_by_its_name_alone(self, tmp_path, hf_spec, lora, loader):
        import peft
        import transformers

        spec = hf_spec(lora_rank=2, lora=lora)
        module = trained_module(spec)
        folder, _, _ = exported(tmp_path, spec, module)
        own = peft.AutoPeftModelForCausalLM if loader == "peft" else transformers.AutoModelForCausalLM
        loaded = own.from_pretrained(folder, dtype=torch.float32).eval()
        torch.testing.assert_close(logits_of(loaded), logits_of(module), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("source", ["hf", "builtin"])
    def test_merged_adapters_are_a_whole_model(self, tmp_path, hf_spec, source):
        spec = hf_spec(lora_rank=2) if source == "hf" else spec_of(LLAMA, lora_rank=2)
        module = trained_module(spec)
        folder, kind, phases = exported(tmp_path, spec, module, merge=True)
        assert (kind, phases[-1]) == ("model", "merging")
        torch.testing.assert_close(logits_of(load(folder)), logits_of(module), rtol=1e-4, atol=1e-5)

    def test_merged_base_is_rounded_as_in_the_training(self, tmp_path, hf_spec):
        spec = hf_spec(lora_rank=2, lora={"base_dtype": "nf4"})
        module = trained_module(spec)
        hold_base(module, "nf4")
        folder, _, _ = exported(tmp_path, spec, module, merge=True, dtype="fp32")
        torch.testing.assert_close(logits_of(load(folder)), logits_of(module), rtol=1e-4, atol=1e-5)

    def test_trained_tensors_load_into_the_base_model(self, tmp_path, hf_spec):
        spec = hf_spec(trainable=["model.layers.1.*"])
        module = trained_module(spec)
        folder, kind, _ = exported(tmp_path, spec, module)
        model = load(spec.model.path)
        model.load_state_dict(load_file(folder / "trained.safetensors"), strict=False)
        assert kind == "trained"
        assert torch.equal(logits_of(model), logits_of(module))

    def test_base_model_may_be_in_another_folder(self, tmp_path, hf_spec, base):
        spec = hf_spec(lora_rank=2)
        module = trained_module(spec)
        moved = spec.model_copy(update={"model": spec.model.model_copy(update={"path": "/nowhere/llama"})})
        with pytest.raises(RefusedError, match=r"/nowhere/llama, cannot be read on this machine") as caught:
            exported(tmp_path, moved, module)
        assert "--base" in caught.value.hint
        shutil.rmtree(tmp_path / "export")
        copy = shutil.copytree(base, tmp_path / "copy")
        folder, _, _ = exported(tmp_path, moved, module, merge=True, base=str(copy))
        torch.testing.assert_close(logits_of(load(folder)), logits_of(module), rtol=1e-4, atol=1e-5)


class TestRefusals:
    def refusal(self, tmp_path, change=lambda checkpoint: None, spec=None, **changes):
        own = spec_of(LLAMA)
        checkpoint = save_checkpoint(tmp_path, trained_module(own))
        change(checkpoint)
        with pytest.raises(RefusedError) as caught:
            export_checkpoint(export_request(checkpoint, spec or own, tmp_path / "export", **changes), lambda _: None)
        assert not list((tmp_path / "export").iterdir())
        return str(caught.value)

    def test_deleted_checkpoint(self, tmp_path):
        assert self.refusal(tmp_path, lambda one: shutil.rmtree(one.root)) == "the checkpoint has been deleted"

    def test_checkpoint_that_is_deleted_while_it_is_read(self, tmp_path):
        def report(update):
            if update.phase == "reading":
                shutil.rmtree(checkpoint.root)

        spec = spec_of(LLAMA)
        checkpoint = save_checkpoint(tmp_path, trained_module(spec))
        with pytest.raises(RefusedError, match="the checkpoint has been deleted"):
            export_checkpoint(export_request(checkpoint, spec, tmp_path / "export"), report)

    def test_damaged_file(self, tmp_path):
        def damage(checkpoint):
            path = checkpoint.root / "__0_0.distcp"
            path.write_bytes(path.read_bytes()[:-1] + b"x")

        message = "the checkpoint is damaged: __0_0.distcp has another digest"
        assert self.refusal(tmp_path, damage) == message

    def test_index_that_is_a_program(self, tmp_path):
        def replace(checkpoint):
            (checkpoint.root / ".metadata").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
            write_manifest(checkpoint)

        assert "its index cannot be read" in self.refusal(tmp_path, replace)

    def test_checkpoint_of_another_model(self, tmp_path):
        message = self.refusal(tmp_path, spec=spec_of(LLAMA | {"layers": 3}))
        assert message.startswith("the checkpoint does not fit the model: missing: model.layers.2.")

    def test_adapters_of_a_model_that_code_defines(self, tmp_path):
        spec = parse_spec({"task": "custom", "target": "task:build", "steps": 3, "lora_rank": 2})
        assert "defined by the job's code" in self.refusal(tmp_path, spec=spec)

    def test_disk_that_is_too_small(self, tmp_path, monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 100))
        message = self.refusal(tmp_path)
        assert message.startswith("the export needs ")
        assert message.endswith(f" in {tmp_path}, which has 100 bytes (100 B) free")

    def test_spec_of_a_later_release(self, tmp_path):
        checkpoint = save_checkpoint(tmp_path, trained_module(spec_of(LLAMA)))
        request = export_request(checkpoint, spec_of(LLAMA), tmp_path / "export")
        request = request.model_copy(update={"spec": request.spec | {"new_field": 1}})
        with pytest.raises(RefusedError, match="this release does not read the job's spec: new_field"):
            export_checkpoint(request, lambda _: None)


def test_model_that_code_defines_is_written_as_tensors(tmp_path):
    spec = parse_spec({"task": "custom", "target": "task:build", "steps": 3})
    module = torch.nn.Linear(2, 3)
    folder, kind, _ = exported(tmp_path, spec, module)
    assert kind == "model"
    assert torch.equal(load_file(folder / "model.safetensors")["weight"], module.weight)
