"""A partly trained Llama: equal updates on any number of ranks, exact resumption, exports that other tools load."""

import json

import pytest
import torch

from tests.integration.worker.harness import FakeService, Run, finish_of, run_layout, series
from tests.integration.worker.lora_cases import BUILTIN, EXPORTED, LORA, PARTIAL, STEPS, TRAINED, Cases
from trainyard.contract.spec.training_spec import parse_spec
from worker.core.random_state import seed_generators
from worker.export.model import save_model
from worker.tasks.select import select_task

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
"""The first test waits for all runs, which take more than a minute on two cores."""

TOKENS = torch.arange(24).view(2, 12) * 7 % 200


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases(tmp_path_factory.mktemp("lora"))


@pytest.fixture(scope="module")
def layouts(cases):
    return {world: run_layout(world, cases.on(world), cases.folder / str(world), seconds=300) for world in (2, 1, 4)}


def tensors(result, case, which="parameters"):
    return {name: torch.tensor(values) for name, values in result[0][case][which].items()}


def logits(layouts, case):
    return torch.tensor(layouts[2][0][case]["logits"]).view(2, 12, -1)


def load_base(cases, name):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(cases.folder / name, dtype=torch.float32).eval()


@torch.no_grad()
def logits_of(model):
    return model(input_ids=TOKENS).logits


@pytest.mark.parametrize(("world", "variant", "problem"), TRAINED)
class TestParityWithOneProcess:
    def test_parameters(self, layouts, world, variant, problem):
        alone, together = tensors(layouts[1], problem), tensors(layouts[world], f"{problem}/{variant}")
        assert alone.keys() == together.keys()
        for name, expected in alone.items():
            assert torch.linalg.norm(together[name] - expected) <= 1e-5 * torch.linalg.norm(expected), name

    def test_every_step(self, layouts, world, variant, problem):
        for key in ("train/loss", "train/grad_norm"):
            alone = series(layouts[1], problem, key)
            assert len(alone) == STEPS
            assert series(layouts[world], f"{problem}/{variant}", key) == pytest.approx(alone, rel=1e-5)

    def test_evaluation(self, layouts, world, variant, problem):
        if problem == "lora":
            alone = series(layouts[1], problem, "eval/loss")
            assert series(layouts[world], f"{problem}/{variant}", "eval/loss") == pytest.approx(alone, rel=1e-5)


class TestTrainedParameters:
    def test_only_adapters_change(self, cases, layouts):
        base = {name: value.flatten() for name, value in load_base(cases, "tied").state_dict().items()}
        for problem, moved in (("lora", "lora_"), ("partial", ("model.layers.1.", "model.norm.weight"))):
            for name, value in tensors(layouts[1], problem).items():
                frozen = name.replace(".base_layer", "")
                trained = moved in name if isinstance(moved, str) else name.startswith(moved)
                assert trained or torch.equal(value, base[frozen]), name
                assert not trained or frozen not in base or not torch.equal(value, base[frozen]), name

    def test_only_named_targets_are_adapted(self, layouts):
        adapted = {name.split(".lora_")[0] for name in tensors(layouts[1], "named") if ".lora_" in name}
        assert {name.rpartition(".")[2] for name in adapted} == {"q_proj", "v_proj", "down_proj"}
        assert len(adapted) == 6


@pytest.mark.parametrize("variant", EXPORTED)
def test_activation_checkpointing_gives_identical_losses(layouts, variant):
    again, reference = (layouts[2][0][f"{case}/{variant}"] for case in ("again", "lora"))
    assert again["series"]["train/loss"] == reference["series"]["train/loss"]
    assert again["parameters"] == reference["parameters"]


class TestCheckpoints:
    def test_checkpoint_has_no_frozen_tensor(self, cases, layouts):
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        for run in ("moved", "resumed-ddp"):
            folders = sorted((cases.folder / run / "checkpoints").glob("step-*"))
            assert folders
            for folder in folders:
                names = FileSystemReader(folder).read_metadata().state_dict_metadata
                model = [name for name in names if name.startswith("model.")]
                assert len(model) == 28
                assert all(".lora_" in name for name in model)
                assert all(".lora_" in name for name in names if name.startswith("optimizer."))

    def test_resume_on_the_same_layout_gives_identical_losses(self, layouts):
        whole, first, rest = (
            layouts[2][0][f"{part}/ddp"]["series"]["train/loss"] for part in ("lora", "first", "rest")
        )
        assert first == {step: whole[step] for step in "12"}
        assert rest == {step: whole[step] for step in "34"}

    def test_resume_from_two_shards_on_one_process(self, layouts):
        whole = series(layouts[1], "lora")
        assert series(layouts[2], "first/layer") == pytest.approx({step: whole[step] for step in (1, 2)}, rel=1e-5)
        assert series(layouts[1], "rest/single") == pytest.approx({step: whole[step] for step in (3, 4)}, rel=1e-5)

    @pytest.mark.parametrize(
        ("case", "message"),
        [
            ("changed rank", "different shapes: model.layers.0.mlp.down_proj.lora_A.default.weight"),
            ("changed targets", "unexpected: model.layers.0.mlp.down_proj.lora_A.default.weight"),
            ("no adapters", "missing: lm_head.weight"),
            ("another model", "missing: model.layers.2."),
        ],
    )
    def test_checkpoint_of_another_model_is_rejected_with_differences(self, layouts, case, message):
        error = layouts[1][0][case]["error"]
        assert error.startswith("the checkpoint of step 4 does not fit the model: ")
        assert message in error


@pytest.mark.parametrize("variant", EXPORTED)
class TestExports:
    def test_exported_adapters_give_the_trained_outputs_in_peft(self, cases, layouts, variant):
        from peft import AutoPeftModelForCausalLM, PeftModel

        folder = cases.folder / f"lora-{variant}"
        loaded = PeftModel.from_pretrained(load_base(cases, "tied"), folder).eval()
        assert torch.equal(logits_of(loaded), logits(layouts, f"lora/{variant}"))
        by_itself = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        assert torch.equal(logits_of(by_itself), logits(layouts, f"lora/{variant}"))
        assert not torch.equal(logits_of(load_base(cases, "tied")), logits(layouts, f"lora/{variant}"))

    def test_exported_adapters_list_named_targets(self, cases, variant):
        config = json.loads((cases.folder / f"named-{variant}" / "adapter_config.json").read_text())
        assert sorted(config["target_modules"]) == ["down_proj", "q_proj", "v_proj"]
        assert config["base_model_name_or_path"] == str(cases.folder / "plain")

    def test_exported_adapters_have_no_base_tensor(self, cases, variant):
        from safetensors import safe_open

        with safe_open(cases.folder / f"lora-{variant}" / "adapter_model.safetensors", "pt") as file:
            names = list(file.keys())
        assert len(names) == 28
        assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in names)

    def test_merged_export_gives_the_trained_outputs(self, cases, layouts, variant):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = cases.folder / f"merged-{variant}"
        merged = logits_of(AutoModelForCausalLM.from_pretrained(folder).eval())
        torch.testing.assert_close(merged, logits(layouts, f"merged/{variant}"), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(merged, logits_of(load_base(cases, "plain")), rtol=1e-2, atol=1e-3)
        assert AutoTokenizer.from_pretrained(folder).eos_token == "<|end|>"
        assert not list(folder.glob("adapter*"))

    def test_full_export_gives_the_trained_outputs(self, cases, layouts, variant):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = cases.folder / f"full-{variant}"
        reloaded = AutoModelForCausalLM.from_pretrained(folder).eval()
        assert torch.equal(logits_of(reloaded), logits(layouts, f"full/{variant}"))
        assert (
            AutoTokenizer.from_pretrained(folder).decode(AutoTokenizer.from_pretrained(folder)("a b").input_ids)
            == "a b"
        )

    def test_exported_tensors_load_into_the_base_model(self, cases, layouts, variant):
        from safetensors.torch import load_file

        folder = cases.folder / f"partial-{variant}"
        weights = load_file(folder / "trained.safetensors")
        assert all(name.startswith(("model.layers.1.", "model.norm.")) for name in weights)
        model = load_base(cases, "tied")
        assert model.load_state_dict(weights, strict=False).unexpected_keys == []
        assert torch.equal(logits_of(model), logits(layouts, f"partial/{variant}"))
        note = json.loads((folder / "export.json").read_text())
        assert (note["kind"], note["trainable"]) == ("trained", PARTIAL["trainable"])

    def test_adapters_trained_in_bf16_are_close_to_fp32(self, cases, layouts, variant):
        from peft import PeftModel

        loaded = PeftModel.from_pretrained(load_base(cases, "plain"), cases.folder / f"bf16-{variant}").eval()
        if variant == "layer":
            # A sharded model computes with all parameters in bf16; buffers keep their dtype.
            for parameter in loaded.parameters():
                parameter.data = parameter.data.bfloat16()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=variant == "ddp"):
            computed = logits_of(loaded).float()
        expected = logits(layouts, f"bf16/{variant}")
        assert torch.linalg.norm(computed - expected) <= 1e-2 * torch.linalg.norm(expected)


class TestExportsOfBuiltinModels:
    def loaded(self, cases, name):
        """Return the base model, initialised from the seed, with the exported adapters."""
        from peft import PeftModel

        spec = parse_spec(cases.on(2)[f"builtin-{name}"]["spec"])
        task = select_task(spec)
        seed_generators(spec.seed)
        return PeftModel.from_pretrained(task.build_model(), cases.folder / f"builtin-{name}").eval()

    @pytest.mark.parametrize("name", BUILTIN)
    def test_adapters_load_with_peft(self, cases, layouts, name):
        state = self.loaded(cases, name).get_base_model().state_dict()
        trained = tensors(layouts[2], f"builtin-{name}")
        assert any(".lora_" in name for name in trained)
        assert all(torch.equal(state[name].flatten(), value) for name, value in trained.items())

    @pytest.mark.parametrize("name", ["gpt", "llama"])
    def test_transformer_export_gives_the_trained_outputs(self, cases, layouts, name):
        with torch.no_grad():
            computed = self.loaded(cases, name)(TOKENS)
        assert torch.equal(computed, logits(layouts, f"builtin-{name}"))

    def test_adapters_of_the_builtin_llama_load_onto_that_of_transformers(self, cases, layouts, tmp_path):
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        spec = parse_spec(cases.on(2)["builtin-llama"]["spec"])
        seed_generators(spec.seed)
        save_model(tmp_path, select_task(spec).build_model().state_dict(), spec)
        base = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        loaded = PeftModel.from_pretrained(base, cases.folder / "builtin-llama").eval()
        torch.testing.assert_close(logits_of(loaded), logits(layouts, "builtin-llama"), rtol=0, atol=1e-5)


@pytest.mark.slow
class TestRejectedRun:
    def test_ends_as_rejected_before_the_first_step(self, cases, tmp_path):
        broken = tmp_path / "broken.jsonl"
        broken.write_text('{"text": "fine"}\n{"text": \n')
        overrides = {**cases.spec("tied", "text", LORA), "gpus": 2, "strategy": "ddp", "schedule": {}, "evaluation": {}}
        overrides["data"] = {**overrides["data"], "path": str(broken)}
        with FakeService() as service:
            run = Run(tmp_path / "job", service.url, overrides, template="gpt_stdlib")
            attempt = run.run()
        finish = finish_of(attempt, 1)
        assert (finish.reason, finish.step) == ("rejected", 0)
        assert finish.failure.message == (
            f"data.path: {broken}, line 2 is not JSON: Expecting value at character 9: "
            "expected one JSON object with `text`, a string"
        )


@pytest.mark.parametrize("case", ["reads/lora", "reads/full"])
def test_a_step_waits_only_where_transformers_reads_the_positions(layouts, case):
    # Once per forward, in find_packed_sequence_indices; a rank computes its five examples in two forwards.
    for rank in layouts[2]:
        assert len(rank[case]["reads"]) == STEPS
        assert max(rank[case]["reads"].values()) <= 2
