"""LoRA on a base in bf16, int8 and nf4: equal updates on any number of ranks, exact resumption, a start without the
whole model, exports that other tools load."""

import json
import shutil

import pytest
import torch

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import gpt
from tests.support import hf
from trainyard.contract.layout import RunLayout
from worker.engine.frozen_base import round_base

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

STEPS = 4
TOKENS = torch.arange(24).view(2, 12) * 7 % 200
VARIANTS = {
    "ddp": {"strategy": "ddp"},
    "zero1": {"strategy": "zero1"},
    "zero2": {"strategy": "zero2"},
    "fsdp": {"strategy": "fsdp"},
    "hsdp": {"strategy": "hsdp", "fsdp": {"replicas": 2}},
}
LAYOUTS = [(2, "ddp", "nf4"), (2, "fsdp", "nf4"), (2, "fsdp", "int8"), (2, "ddp", "bf16")]
SLOW_LAYOUTS = [(2, "zero1", "nf4"), (2, "zero2", "nf4"), (2, "fsdp", "bf16"), (2, "ddp", "int8")]
SLOW_LAYOUTS += [(4, "hsdp", "nf4"), (4, "fsdp", "int8"), (4, "ddp", "int8")]
_LARGE = {"source": "builtin", "name": "llama", "layers": 12, "width": 128, "heads": 4, "context": 16, "vocab": 257}


class Cases:
    """The runs with one folder of models and data."""

    def __init__(self, folder):
        self.folder = folder
        hf.save_llama(folder / "tied", tied=True)
        hf.save_llama(folder / "deep", layers=10)
        self.text = hf.write_lines(folder / "text.jsonl", hf.texts(30))

    def spec(self, dtype, *, model="tied", merge=False, **changes):
        return {
            "version": 1,
            "task": "causal_lm",
            "precision": "fp32",
            "model": {"source": "hf", "path": str(self.folder / model)},
            "data": {"source": "jsonl", "path": str(self.text), "max_length": 48},
            "steps": STEPS,
            "batch": {"size": 10, "micro_size": 3},
            "optimizer": {"name": "adamw", "lr": 0.01, "eps": 1e-6, "clip_norm": 0.5},
            "lora_rank": 4,
            "lora": {"alpha": 16, "base_dtype": dtype, "merge": merge},
            "log": {"every_steps": 1},
            **changes,
        }

    def start(self, strategy, dtype, *, drawn=False):
        drawn_spec = gpt(steps=2, model=_LARGE, lora_rank=4, lora={"base_dtype": dtype})
        spec = drawn_spec if drawn else self.spec(dtype, model="deep")
        return {"spec": spec | VARIANTS.get(strategy, {"strategy": strategy}), "only_start": True}

    def on(self, layouts):
        return {f"{name}/{dtype}": {"spec": self.spec(dtype) | VARIANTS[name]} for _, name, dtype in layouts}

    def on_one(self):
        cases = {dtype: {"spec": self.spec(dtype)} for dtype in ("bf16", "int8", "nf4")}
        cases["nf4"] = {"spec": self.spec("nf4", merge=True), "export": str(self.folder / "merged")}
        cases["rest on one"] = {"spec": self.spec("nf4"), "run": "moved"}
        other = hf.write_lines(self.folder / "other.jsonl", hf.texts(29))
        data = {"source": "jsonl", "path": str(other), "max_length": 48}
        cases["changed data"] = {"spec": self.spec("nf4", data=data), "run": "moved"}
        hf.save_llama(self.folder / "changed", tied=True, seed=1)
        cases["changed base"] = {"spec": self.spec("nf4", model="changed"), "run": "moved"}
        cases["start of single"] = self.start("single", "nf4")
        return cases

    def on_two(self):
        cases = self.on(LAYOUTS)
        cases["fsdp/nf4"]["export"] = str(self.folder / "adapter")
        cases |= self.resumed("fsdp")
        cases["start of ddp"] = self.start("ddp", "bf16")
        cases["start of fsdp"] = self.start("fsdp", "nf4")
        cases["start of fsdp, drawn"] = self.start("fsdp", "int8", drawn=True)
        return cases

    def resumed(self, name):
        case = {"spec": self.spec("nf4") | VARIANTS[name], "run": f"resumed-{name}"}
        return {f"first/{name}": case | {"until": 2}, f"rest/{name}": case}

    def slow_on_two(self):
        cases = self.on(layout for layout in SLOW_LAYOUTS if layout[0] == 2) | self.resumed("ddp")
        cases |= self.on([(2, "ddp", "nf4")])
        halves = {name: self.spec("nf4", precision="bf16") | VARIANTS[name] for name in ("ddp", "fsdp")}
        return cases | {f"half/{name}": {"spec": spec} for name, spec in halves.items()}


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def on_two(cases):
    return run_layout(2, cases.on_two(), cases.folder / "2")


@pytest.fixture(scope="module")
def alone(cases, on_two):
    """The runs on one rank, one of which continues a run on two from its first checkpoint."""
    moved = RunLayout(shutil.copytree(cases.folder / "resumed-fsdp", cases.folder / "moved"))
    shutil.rmtree(moved.checkpoint(STEPS).root)
    return run_layout(1, cases.on_one(), cases.folder / "1")[0]


@pytest.fixture(scope="module")
def slow_on_two(cases):
    return run_layout(2, cases.slow_on_two(), cases.folder / "2-slow")


@pytest.fixture(scope="module")
def on_four(cases):
    chosen = cases.on(layout for layout in SLOW_LAYOUTS if layout[0] == 4)
    return run_layout(4, chosen, cases.folder / "4")


def series(result, key="train/loss"):
    return {int(step): float(value) for step, value in result["series"][key].items()}


def check_updates(alone, together):
    for key in ("train/loss", "train/grad_norm"):
        assert len(series(alone, key)) == STEPS
        assert series(together, key) == pytest.approx(series(alone, key), rel=1e-5)
    for name, values in alone["exported"].items():
        expected, result = torch.tensor(values), torch.tensor(together["exported"][name])
        assert ".lora_" in name
        assert torch.linalg.norm(result - expected) <= 1e-5 * torch.linalg.norm(expected), name


@pytest.mark.parametrize(("world", "variant", "dtype"), LAYOUTS)
def test_updates_equal_those_of_one_process(alone, on_two, world, variant, dtype):
    check_updates(alone[dtype], on_two[0][f"{variant}/{dtype}"])


@pytest.mark.slow
@pytest.mark.parametrize(("world", "variant", "dtype"), SLOW_LAYOUTS)
def test_updates_of_more_layouts_equal_those_of_one_process(request, alone, world, variant, dtype):
    together = request.getfixturevalue("slow_on_two" if world == 2 else "on_four")
    check_updates(alone[dtype], together[0][f"{variant}/{dtype}"])


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["ddp", "fsdp"])
def test_bf16_precision_is_close_to_fp32(alone, slow_on_two, variant):
    assert series(slow_on_two[0][f"half/{variant}"]) == pytest.approx(series(alone["nf4"]), rel=0.005)


def test_dtypes_have_different_updates(alone):
    assert len({json.dumps(alone[dtype]["series"]["train/loss"]) for dtype in ("bf16", "int8", "nf4")}) == 3


@pytest.mark.parametrize("variant", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_resume_gives_identical_losses(request, variant):
    runs = request.getfixturevalue("on_two" if variant == "fsdp" else "slow_on_two")[0]
    whole, first, rest = (
        runs[name]["series"]["train/loss"] for name in (f"{variant}/nf4", f"first/{variant}", f"rest/{variant}")
    )
    assert first == {step: whole[step] for step in "12"}
    assert rest == {step: whole[step] for step in "34"}


def test_resume_from_two_shards_on_one_process(alone):
    whole = series(alone["nf4"])
    assert series(alone["rest on one"]) == pytest.approx({step: whole[step] for step in (3, 4)}, rel=1e-5)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("changed data", "data.path: the training examples in {}/other.jsonl have changed"),
        ("changed base", "model.path: the frozen base model in {}/changed has changed"),
    ],
)
def test_resume_with_other_sources_is_refused_by_name(cases, alone, case, message):
    assert alone[case]["error"] == f"{message.format(cases.folder)} since the checkpoint of step 4"


@pytest.mark.parametrize("case", ["single", "ddp", "fsdp", "fsdp, drawn"])
def test_start_holds_the_base_and_one_layer(request, case):
    ranks = [request.getfixturevalue("alone")] if case == "single" else request.getfixturevalue("on_two")
    for rank in ranks:
        start = rank[f"start of {case}"]
        assert start["events"] == {}
        assert start["differing"] == []
        assert start["same_generator"]
        # DDP copies the parameters into buckets of 250 MiB when it sends them to all ranks.
        buckets = start["shards"] if case == "ddp" else 0
        assert start["peak"] - buckets <= 1.1 * start["shards"] + 3 * start["largest"]
        assert start["peak"] - buckets < 0.7 * start["whole"]


class TestExports:
    def base(self, cases):
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(cases.folder / "tied", dtype=torch.float32).eval()

    @torch.no_grad()
    def logits(self, model):
        return model(input_ids=TOKENS).logits.float()

    def trained(self, result):
        return torch.tensor(result["logits"]).view(2, 12, -1)

    def test_adapters_on_the_rounded_base_give_the_trained_outputs_in_peft(self, cases, on_two):
        from peft import PeftModel

        base = self.base(cases)
        round_base(base, "nf4")
        loaded = PeftModel.from_pretrained(base, cases.folder / "adapter").eval()
        expected = self.trained(on_two[0]["fsdp/nf4"])
        torch.testing.assert_close(self.logits(loaded), expected, rtol=1e-5, atol=1e-6)
        assert json.loads((cases.folder / "adapter" / "export.json").read_text())["base_dtype"] == "nf4"

    def test_merged_export_is_in_bf16_and_gives_the_trained_outputs(self, cases, alone):
        from transformers import AutoModelForCausalLM

        merged = AutoModelForCausalLM.from_pretrained(cases.folder / "merged").eval()
        assert merged.dtype == torch.bfloat16
        expected = self.trained(alone["nf4"])

        def error_of(model):
            return torch.linalg.norm(self.logits(model) - expected) / torch.linalg.norm(expected)

        assert error_of(merged.float()) < 0.01
        assert error_of(merged.float()) < 0.1 * error_of(self.base(cases))
