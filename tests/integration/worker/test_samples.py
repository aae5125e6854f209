"""Samples: equal texts on any layout, equal to those of transformers, and no effect on the updates."""

import json

import pytest
import torch

from tests.integration.worker.harness import run_layout
from tests.support import hf
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.samples import SamplesRecord

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

PROMPTS = ["def encode(", "import", "The square of 3 is ", "x"]
NEW = 8
GPT = {"source": "builtin", "name": "gpt", "layers": 2, "width": 16, "heads": 2, "context": 24, "vocab": 257}
LLAMA = GPT | {"name": "llama", "key_value_heads": 1}
VARIANTS = {"ddp": {"strategy": "ddp"}, "layer": {"strategy": "fsdp"}, "zero2": {"strategy": "zero2"}}
KINDS = ("hf", "gpt", "llama", "drawn", "lora")
LAYOUTS = [(kind, 2, variant) for kind in KINDS for variant in VARIANTS]
LAYOUTS += [("hf", 3, "ddp"), ("drawn", 3, "ddp"), ("gpt", 3, "layer"), ("lora", 3, "layer"), ("llama", 3, "zero2")]
STEPS = 2


class Cases:
    def __init__(self, folder):
        self.folder = folder
        hf.save_llama(folder / "model")
        self.texts = hf.write_lines(folder / "texts.jsonl", hf.texts(30))

    def spec(self, kind, **changes):
        model = {"gpt": GPT, "llama": LLAMA}.get(kind, {"source": "hf", "path": str(self.folder / "model")})
        samples = {"prompts": PROMPTS, "max_new_tokens": NEW, "temperature": 0.8 if kind == "drawn" else 0}
        length = 24 if kind in ("gpt", "llama") else 48
        return {
            "version": 1,
            "task": "causal_lm",
            "precision": "fp32",
            "seed": 5,
            "model": model,
            "data": {"source": "jsonl", "path": str(self.texts), "max_length": length},
            "steps": STEPS,
            "batch": {"size": 10, "micro_size": 3},
            "optimizer": {"name": "adamw", "lr": 0.01},
            "evaluation": {"every_steps": STEPS, "first": True, "samples": samples},
            "log": {"every_steps": 1},
            **({"lora_rank": 4} if kind == "lora" else {}),
            **changes,
        }

    def alone(self):
        cases = {kind: {"spec": self.spec(kind), "run": f"1/{kind}"} for kind in KINDS}
        plain = self.spec("hf") | {"evaluation": {}}
        cases["exported"] = {"spec": self.spec("hf"), "run": "1/exported", "export": str(self.folder / "export")}
        return cases | {"without": {"spec": plain}}

    def spread(self, world):
        return {
            f"{kind}/{variant}": {"spec": self.spec(kind) | VARIANTS[variant], "run": f"{world}/{kind}-{variant}"}
            for kind, ranks, variant in LAYOUTS
            if ranks == world
        }

    def record(self, run, step):
        text = (RunLayout(self.folder / run).samples / f"step-{step:010d}.json").read_text()
        return SamplesRecord.model_validate_json(text)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases(tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="module")
def results(cases):
    worlds = {1: cases.alone(), 2: cases.spread(2), 3: cases.spread(3)}
    return {
        world: run_layout(world, of_world, cases.folder / str(world), seconds=300) for world, of_world in worlds.items()
    }


@pytest.mark.parametrize(("kind", "world", "variant"), LAYOUTS)
def test_layouts_generate_the_same(cases, results, kind, world, variant):
    for step in (0, STEPS):
        assert cases.record(f"{world}/{kind}-{variant}", step) == cases.record(f"1/{kind}", step)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_change_as_the_model_learns(cases, results, kind):
    first, last = (cases.record(f"1/{kind}", step).samples for step in (0, STEPS))
    assert [sample.prompt for sample in first] == PROMPTS
    assert first != last
    assert all(sample.tokens == NEW or sample.ended or kind in ("gpt", "llama") for sample in last)


def test_texts_end_at_the_context_of_the_model(cases, results):
    samples = cases.record("1/gpt", 0).samples
    assert [sample.tokens for sample in samples] == [min(NEW, 24 - len(prompt)) for prompt in PROMPTS]


def test_texts_are_those_of_transformers(cases, results):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(cases.folder / "export", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(cases.folder / "export")
    for sample in cases.record("1/exported", STEPS).samples:
        inputs = tokenizer(sample.prompt, return_tensors="pt")
        output = model.generate(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
        )
        expected = tokenizer.decode(output[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
        assert sample.text == expected


def test_samples_change_no_update(results):
    alone = results[1][0]
    assert alone["hf"]["series"]["train/loss"] == alone["without"]["series"]["train/loss"]


def test_an_event_names_the_file(results):
    assert results[1][0]["hf"]["events"]["samples_written"] == "Generated samples of step 2: 4"
    assert json.dumps(results[1][0]["without"]["events"]).find("samples") == -1
