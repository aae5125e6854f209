"""rsLoRA, DoRA, modules that are trained whole, continued adapters and NEFTune: the updates of one process on any
layout, and exports that peft loads."""

import pytest
import torch

from tests.integration.worker.harness import run_layout
from tests.support import hf

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
"""The first test waits for all runs."""

TOKENS = torch.arange(24).view(2, 12) * 7 % 200
KINDS = {
    "rslora": {"rslora": True},
    "dora": {"dora": True},
    "head": {"modules_to_save": ["lm_head"]},
    "edges": {"modules_to_save": ["embed_tokens", "lm_head", "*.input_layernorm"]},
    "all": {"rslora": True, "dora": True, "modules_to_save": ["lm_head"], "targets": ["q_proj", "v_proj", "down_proj"]},
}
VARIANTS = {"ddp": {"strategy": "ddp"}, "layer": {"strategy": "fsdp"}}
CONTINUED = ("rslora", "all")
STEPS = 3


class Cases:
    def __init__(self, folder):
        self.folder = folder
        hf.save_llama(folder / "model")
        self.chats = hf.write_lines(folder / "chats.jsonl", hf.chats())

    def spec(self, lora, **changes):
        return {
            "version": 1,
            "task": "causal_lm",
            "precision": "fp32",
            "seed": 5,
            "model": {"source": "hf", "path": str(self.folder / "model")},
            "data": {
                "source": "jsonl",
                "path": str(self.chats),
                "eval_path": str(self.chats),
                "max_length": 64,
            },
            "steps": STEPS,
            "batch": {"size": 6, "micro_size": 2},
            "optimizer": {"name": "adamw", "lr": 0.01, "clip_norm": 0.5},
            "log": {"every_steps": 1},
            "lora_rank": 4,
            "lora": {"alpha": 8, **lora},
            **changes,
        }

    def first(self):
        """Return the runs on two ranks, whose exports the later ones use."""
        cases = {
            f"{kind}/{variant}": {
                "spec": self.spec(lora) | strategy,
                "export": str(self.folder / f"{kind}-{variant}"),
            }
            for kind, lora in KINDS.items()
            for variant, strategy in VARIANTS.items()
        }
        half = self.spec({"base_dtype": "bf16", "dora": True}, precision="bf16")
        for variant, strategy in VARIANTS.items():
            cases[f"half/{variant}"] = {"spec": half | strategy}
        merged = {"merge": True, "dora": True, "rslora": True, "modules_to_save": ["lm_head"]}
        cases["merged"] = {
            "spec": self.spec(merged) | VARIANTS["layer"],
            "export": str(self.folder / "merged"),
        }
        noisy = self.spec({}, loss={"neftune_alpha": 5}) | VARIANTS["ddp"]
        cases |= {"noisy": {"spec": noisy}, "noisy-first": {"spec": noisy, "run": "noisy", "until": 2}}
        return cases | {"noisy-rest": {"spec": noisy, "run": "noisy"}}

    def continued(self, kind):
        adapter = {"adapter": str(self.folder / f"{kind}-layer")}
        return self.spec(KINDS[kind] | adapter, evaluation={"first": True})

    def second(self, world):
        variants = VARIANTS if world == 2 else {"single": {}}
        cases = {
            f"continued-{kind}/{variant}": {"spec": self.continued(kind) | strategy}
            for kind in CONTINUED
            for variant, strategy in variants.items()
        }
        if world == 1:
            cases |= {kind: {"spec": self.spec(lora)} for kind, lora in KINDS.items()}
            cases |= {"plain": {"spec": self.spec({})}, "half": {"spec": self.spec({"dora": True})}}
        return cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def first(cases):
    return run_layout(2, cases.first(), cases.folder / "first", seconds=300)[0]


@pytest.fixture(scope="module")
def second(cases, first):
    return {
        world: run_layout(world, cases.second(world), cases.folder / str(world), seconds=300)[0] for world in (1, 2)
    }


def series(result, case, key="train/loss"):
    return {int(step): float(value) for step, value in result[case]["series"][key].items()}


def tensors(result, case):
    return {name: torch.tensor(values) for name, values in result[case]["parameters"].items()}


@torch.no_grad()
def logits_of(model):
    return model.eval()(input_ids=TOKENS).logits


def load_base(cases):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(cases.folder / "model", dtype=torch.float32)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
class TestKinds:
    def test_updates_are_those_of_one_process(self, first, second, kind, variant):
        alone, together = tensors(second[1], kind), tensors(first, f"{kind}/{variant}")
        assert alone.keys() == together.keys()
        for name, expected in alone.items():
            assert torch.linalg.norm(together[name] - expected) <= 1e-5 * torch.linalg.norm(expected), name
        assert series(first, f"{kind}/{variant}") == pytest.approx(series(second[1], kind), rel=1e-5)

    def test_peft_loads_the_export_with_the_trained_outputs(self, cases, first, kind, variant):
        from peft import PeftModel

        loaded = PeftModel.from_pretrained(load_base(cases), cases.folder / f"{kind}-{variant}")
        expected = torch.tensor(first[f"{kind}/{variant}"]["logits"]).view(2, 12, -1)
        torch.testing.assert_close(logits_of(loaded), expected, rtol=0, atol=2e-6)
        assert not torch.allclose(logits_of(load_base(cases)), expected, atol=1e-2)

    def test_export_evaluates_to_the_same_loss(self, cases, first, kind, variant):
        from peft import PeftModel
        from transformers import AutoTokenizer

        loaded = PeftModel.from_pretrained(load_base(cases), cases.folder / f"{kind}-{variant}")
        tokenizer = AutoTokenizer.from_pretrained(cases.folder / "model")
        total, count = 0.0, 0
        for chat in hf.chats():
            text = tokenizer.apply_chat_template(chat["messages"], tokenize=False)
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            ids, offsets = torch.tensor([encoded["input_ids"]]), encoded["offset_mapping"]
            with torch.no_grad():
                logps = loaded.eval()(input_ids=ids).logits[0, :-1].log_softmax(-1)
            spans = answers(text)
            for position in range(1, ids.shape[1]):
                if any(start <= offsets[position][0] < end for start, end in spans):
                    total -= logps[position - 1, ids[0, position]].item()
                    count += 1
        assert series(first, f"{kind}/{variant}", "eval/loss")[STEPS] == pytest.approx(total / count, rel=1e-5)


def answers(text):
    """Return the spans of the assistant's messages, their end tokens included."""
    spans, mark, end = [], "<|assistant|>", "<|end|>"
    start = text.find(mark)
    while start >= 0:
        stop = text.index(end, start) + len(end)
        spans.append((start + len(mark), stop))
        start = text.find(mark, stop)
    return spans


class TestProperties:
    def test_scale_of_rslora_is_larger(self, second):
        assert series(second[1], "rslora")[1] == series(second[1], "plain")[1]  # Adapters change nothing yet.
        assert series(second[1], "rslora")[2] != series(second[1], "plain")[2]

    def test_dora_begins_with_the_norms_of_the_base(self, cases, second):
        assert series(second[1], "dora")[1] == pytest.approx(series(second[1], "plain")[1], rel=1e-6)
        names = [name for name in tensors(second[1], "dora") if "lora_magnitude_vector" in name]
        assert len(names) == 14

    def test_only_adapters_and_whole_modules_are_exported(self, cases, first):
        from safetensors import safe_open

        with safe_open(cases.folder / "edges-layer" / "adapter_model.safetensors", "pt") as file:
            whole = [name for name in file.keys() if ".lora_" not in name]  # noqa: SIM118
        assert sorted(whole) == [
            "base_model.model.lm_head.weight",
            "base_model.model.model.embed_tokens.weight",
            "base_model.model.model.layers.0.input_layernorm.weight",
            "base_model.model.model.layers.1.input_layernorm.weight",
        ]

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_base_in_bf16_follows_fp32(self, first, second, variant):
        assert series(first, f"half/{variant}") == pytest.approx(series(second[1], "half"), rel=2e-2)

    def test_merged_export_gives_the_trained_outputs(self, cases, first):
        from transformers import AutoModelForCausalLM

        merged = AutoModelForCausalLM.from_pretrained(cases.folder / "merged", dtype=torch.float32)
        expected = torch.tensor(first["merged"]["logits"]).view(2, 12, -1)
        torch.testing.assert_close(logits_of(merged), expected, rtol=1e-4, atol=1e-5)


class TestContinuedAdapter:
    @pytest.mark.parametrize("kind", CONTINUED)
    @pytest.mark.parametrize(("world", "variant"), [(1, "single"), (2, "ddp"), (2, "layer")])
    def test_training_begins_where_the_adapter_ended(self, first, second, world, variant, kind):
        ended = series(first, f"{kind}/layer", "eval/loss")[STEPS]
        evaluated = series(second[world], f"continued-{kind}/{variant}", "eval/loss")
        assert evaluated[0] == pytest.approx(ended, rel=1e-6)
        assert evaluated[STEPS] < ended

    @pytest.mark.parametrize("kind", CONTINUED)
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_updates_are_those_of_one_process(self, second, kind, variant):
        alone = series(second[1], f"continued-{kind}/single")
        assert series(second[2], f"continued-{kind}/{variant}") == pytest.approx(alone, rel=1e-5)


class TestNoise:
    def test_resumed_run_draws_the_same_noise(self, first):
        whole, begun, rest = (first[case]["series"]["train/loss"] for case in ("noisy", "noisy-first", "noisy-rest"))
        assert begun == {step: whole[step] for step in "12"}
        assert rest == {"3": whole["3"]}

    def test_noise_is_in_training_alone(self, first, second):
        noisy, plain = series(first, "noisy"), series(second[1], "plain")
        assert noisy[1] != plain[1]
        assert noisy[1] == pytest.approx(plain[1], rel=0.05)
