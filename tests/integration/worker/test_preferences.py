"""Learning from preferences: equal updates on any number of ranks, one reference, exact resumption."""

import math

import numpy as np
import pytest
import torch

from tests.integration.worker.harness import examples_of_steps, run_layout, series
from tests.support import hf
from trainyard.contract.spec.sections import BuiltinData
from trainyard.contract.spec.templates import load_template
from worker.data.examples import IGNORED_LABEL
from worker.tasks.preference import stdlib_pairs

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
"""The first test waits for all runs."""

LORA = {"lora_rank": 4, "lora": {"alpha": 16}}
ADAMW = {"name": "adamw", "lr": 0.01, "clip_norm": 0.5, "eps": 1e-6}
"""With the usual eps, rounding of the smallest gradients would decide their updates."""
OBJECTIVES = {
    "dpo": {"objective": "dpo"},
    "dpo-lora": {"objective": "dpo", **LORA},
    "dpo-ipo": {
        "objective": "dpo",
        "preference": {"loss_type": "ipo", "beta": 0.5},
        # The loss is lowest at a certain margin, which larger steps would pass.
        "optimizer": ADAMW | {"lr": 0.002},
    },
    "orpo": {"objective": "orpo"},
    "simpo": {"objective": "simpo", **LORA},
    "kto": {"objective": "kto", "preference": {"undesirable_weight": 1.5}},
    "kto-lora": {"objective": "kto", **LORA},
}
DATA = {"dpo-lora": "chat", "kto": "labelled", "kto-lora": "labelled"}
VARIANTS = {
    "ddp": {"strategy": "ddp"},
    "zero2": {"strategy": "zero2"},
    "layer": {"strategy": "fsdp"},
    "size": {"strategy": "fsdp", "fsdp": {"wrap": "size", "min_params": 3000}},
}
LAYOUTS = [
    *((2, name, "layer") for name in OBJECTIVES),
    *((2, name, "ddp") for name in ("dpo", "dpo-lora", "kto", "kto-lora")),
    *((2, name, variant) for name in ("dpo", "kto") for variant in ("zero2", "size")),
    *((3, name, "ddp") for name in ("dpo", "kto-lora")),
]
RESUMED = [("dpo", "ddp"), ("kto", "layer"), ("dpo-lora", "layer")]
STEPS = 4
MIXTURES = ("dpo", "orpo", "simpo", "kto")
"""Objectives that also learn from a mixture of two sources, of which a fraction is held out."""
WITHOUT_REFERENCE = ("orpo", "simpo")


class Cases:
    def __init__(self, folder):
        self.folder = folder
        hf.save_llama(folder / "model", layers=1)
        pairs = {"texts": hf.preferences(25), "chat": hf.chat_preferences(25), "labelled": hf.labelled_answers(25)}
        pairs["more-labelled"] = hf.labelled_answers(12)[3:]
        self.files = {name: hf.write_lines(folder / f"{name}.jsonl", lines) for name, lines in pairs.items()}

    def spec(self, name, **changes):
        path = str(self.files[DATA.get(name, "texts")])
        return {
            "version": 1,
            "task": "causal_lm",
            "precision": "fp32",
            "seed": 5,
            "model": {"source": "hf", "path": str(self.folder / "model")},
            "data": {"source": "jsonl", "path": path, "max_length": 48, "eval_sets": {"same": path}},
            "steps": STEPS,
            "batch": {"size": 10, "micro_size": 3},
            "optimizer": ADAMW,
            "evaluation": {"every_steps": 2, "limit": 7},
            "log": {"every_steps": 1},
            **OBJECTIVES[name],
            **changes,
        }

    def mixture(self, name, **changes):
        kinds = ("labelled", "more-labelled") if name == "kto" else ("texts", "chat")
        sources = [
            {"path": str(self.files[kinds[0]]), "name": "some"},
            {"path": str(self.files[kinds[1]]), "weight": 3},
        ]
        data = {"source": "mixture", "sources": sources, "eval_fraction": 0.2, "max_length": 48}
        return self.spec(name, data=data, **changes)

    def alone(self):
        cases = {name: {"spec": self.spec(name)} for name in OBJECTIVES}
        chunked = {f"chunked/{name}": {"spec": self.spec(name), "max_logits": 4000} for name in OBJECTIVES}
        moved = {"moved/dpo-lora": {"spec": self.spec("dpo-lora"), "run": "moved/dpo-lora"}}
        mixtures = {f"mixture/{name}": {"spec": self.mixture(name)} for name in MIXTURES}
        return cases | chunked | moved | mixtures

    def on(self, world):
        cases = {}
        for ranks, name, variant in LAYOUTS:
            if ranks == world:
                cases[f"{name}/{variant}"] = {"spec": self.spec(name) | VARIANTS[variant]}
        for name in MIXTURES:
            cases[f"mixture/{name}"] = {"spec": self.mixture(name, strategy="ddp")}
        if world == 2:
            for name in ("dpo", "kto"):
                spec, run = self.mixture(name, strategy="ddp"), f"resumed/mixture/{name}"
                cases[f"first/mixture/{name}"] = {"spec": spec, "run": run, "until": 3}
                cases[f"rest/mixture/{name}"] = {"spec": spec, "run": run}
            for name, variant in RESUMED:
                spec, run = self.spec(name) | VARIANTS[variant], f"resumed/{name}"
                cases[f"first/{name}"] = {"spec": spec, "run": run, "until": 2}
                cases[f"rest/{name}"] = {"spec": spec, "run": run}
            cases["to-move"] = {"spec": self.spec("dpo-lora") | VARIANTS["layer"], "run": "moved/dpo-lora", "until": 2}
            half = {"precision": "bf16", "activation_checkpointing": "selective"}
            for variant in ("ddp", "layer"):
                cases[f"bf16/{variant}"] = {"spec": self.spec("dpo", **half) | VARIANTS[variant]}
        return cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases(tmp_path_factory.mktemp("preferences"))


@pytest.fixture(scope="module")
def layouts(cases):
    results = {world: run_layout(world, cases.on(world), cases.folder / str(world), seconds=400) for world in (2, 3)}
    return results | {1: run_layout(1, cases.alone(), cases.folder / "1", seconds=300)}


def parameters(result, case):
    return {name: torch.tensor(values) for name, values in result[0][case]["parameters"].items()}


@pytest.mark.parametrize(("world", "name", "variant"), LAYOUTS)
class TestParityWithOneProcess:
    def test_updates(self, layouts, world, name, variant):
        alone, together = parameters(layouts[1], name), parameters(layouts[world], f"{name}/{variant}")
        assert alone.keys() == together.keys()
        for key, expected in alone.items():
            assert torch.linalg.norm(together[key] - expected) <= 2e-5 * torch.linalg.norm(expected), key

    def test_losses_and_measured_values(self, layouts, world, name, variant):
        own = layouts[1][0][name]["series"]
        keys = [key for key in own if key.startswith(("train/loss", "train/rewards", "train/logps", "eval/"))]
        assert {"train/rewards/margins", "eval/rewards/accuracies", "eval/logps/chosen/same"} <= set(keys)
        for key in keys:
            expected, values = series(layouts[1], name, key), series(layouts[world], f"{name}/{variant}", key)
            if key == "train/rewards/accuracies":
                # The margins of the first step are rounding alone.
                del expected[1], values[1]
            # Rewards are differences of log-probabilities near 100 nats, of which fp32 has five digits after the point.
            assert values == pytest.approx(expected, rel=1e-4, abs=1e-5), key


@pytest.mark.parametrize("name", MIXTURES)
class TestMixtures:
    @pytest.mark.parametrize("world", [2, 3])
    def test_examples_are_the_same_on_every_layout(self, layouts, name, world):
        case = f"mixture/{name}"
        for key in ("train/loss", "eval/loss", "eval/loss/some", "eval/loss/source_2"):
            alone = series(layouts[1], case, key)
            assert len(alone) == (STEPS if key.startswith("train/") else 2), key
            assert series(layouts[world], case, key) == pytest.approx(alone, rel=1e-4, abs=1e-5), key
        assert examples_of_steps(layouts[world], case) == examples_of_steps(layouts[1], case)

    def test_resumed_run_equals_the_uninterrupted_one(self, layouts, name):
        if name in ("dpo", "kto"):
            parts = [series(layouts[2], f"{part}/mixture/{name}") for part in ("first", "rest")]
            assert parts[0] | parts[1] == series(layouts[2], f"mixture/{name}")

    def test_smaller_source_comes_more_often(self, layouts, name):
        drawn = [index for step in examples_of_steps(layouts[1], f"mixture/{name}").values() for index in step]
        few = sum(index >= (33 if name == "kto" else 20) for index in drawn)
        assert few / len(drawn) == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("name", OBJECTIVES)
class TestOneProcess:
    def test_logits_in_pieces_give_the_same_updates(self, layouts, name):
        whole, pieces = parameters(layouts[1], name), parameters(layouts[1], f"chunked/{name}")
        for key, expected in whole.items():
            assert torch.linalg.norm(pieces[key] - expected) <= 2e-5 * torch.linalg.norm(expected), key

    def test_model_begins_as_its_own_reference(self, layouts, name):
        first = {key: series(layouts[1], name, f"train/rewards/{key}")[1] for key in ("chosen", "rejected", "margins")}
        if name in WITHOUT_REFERENCE:
            assert all(abs(value) > 1e-3 for value in first.values())
        else:
            assert first == pytest.approx(dict.fromkeys(first, 0.0), abs=1e-5)

    def test_model_learns_what_is_preferred(self, layouts, name):
        margins = series(layouts[1], name, "eval/rewards/margins")
        assert margins[STEPS] > margins[2]
        assert margins[STEPS] > 0
        losses = series(layouts[1], name)
        assert losses[STEPS] < losses[1]


def test_dpo_begins_at_the_logarithm_of_two(layouts):
    assert series(layouts[1], "dpo")[1] == pytest.approx(np.log(2), abs=1e-6)


@pytest.mark.parametrize("variant", ["ddp", "layer"])
def test_bf16_follows_fp32(layouts, variant):
    expected, half = series(layouts[1], "dpo"), series(layouts[2], f"bf16/{variant}")
    assert half == pytest.approx(expected, abs=0.05)
    assert half[STEPS] < half[1]


class TestResumption:
    @pytest.mark.parametrize(("name", "variant"), RESUMED)
    def test_losses_equal_those_of_the_uninterrupted_run(self, layouts, name, variant):
        whole, first, rest = (
            layouts[2][0][case]["series"]["train/loss"]
            for case in (f"{name}/{variant}", f"first/{name}", f"rest/{name}")
        )
        assert first == {step: whole[step] for step in "12"}
        assert rest == {step: whole[step] for step in "34"}

    @pytest.mark.parametrize(("name", "variant"), RESUMED)
    def test_reference_is_computed_by_the_first_execution_alone(self, layouts, name, variant):
        events = [layouts[2][0][f"{part}/{name}"]["events"] for part in ("first", "rest")]
        assert ["reference_computed" in one for one in events] == [True, False]

    def test_another_layout_uses_the_same_reference(self, layouts):
        assert "reference_computed" not in layouts[1][0]["moved/dpo-lora"]["events"]
        expected = series(layouts[1], "dpo-lora")
        assert series(layouts[1], "moved/dpo-lora") == pytest.approx({n: expected[n] for n in (3, 4)}, rel=1e-5)


def test_preset_learns_what_is_preferred(tmp_path):
    preset = {
        **load_template("dpo_stdlib").spec,
        "gpus": 1,
        "steps": 8,
        "batch": {"size": 8},
        "log": {"every_steps": 1},
    }
    case = preset | {"model": preset["model"] | {"width": 32, "layers": 1}, "checkpoint": {}}
    case["evaluation"] = {"every_steps": 4, "limit": 20}
    result = run_layout(1, {"preset": {"spec": case}}, tmp_path / "1")
    losses = series(result, "preset")
    assert losses[1] == pytest.approx(math.log(2)), "model and reference are the same at the start"
    assert losses[8] < losses[1]
    accuracies = series(result, "preset", "eval/rewards/accuracies")
    assert accuracies.keys() == {4, 8}
    assert accuracies[8] > 0.9


def test_pairs_of_the_standard_library_share_their_prompt():
    data = BuiltinData(name="stdlib", eval_fraction=0.1)
    examples = stdlib_pairs(data, 32)
    assert (examples.train, examples.held_out) == (900, 100)
    tokens, labels, _ = examples.train_batch(np.arange(900), torch.device("cpu"))
    chosen, rejected = tokens.chunk(2)
    assert torch.equal(chosen[:, :16], rejected[:, :16])
    texts = [bytes(rows[:, 16:].flatten().to(torch.uint8).tolist()) for rows in (chosen, rejected)]
    assert texts[0].upper() == texts[1] != texts[0]
    assert ((labels != IGNORED_LABEL).sum(dim=1) == 16).all()
