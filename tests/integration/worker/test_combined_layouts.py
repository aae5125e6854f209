"""What other tests vary alone, together: continued adapters with ranks of their own, DoRA, Muon, Adafactor, packed rows
and bases in few bits make the updates of one process on two and three ranks, also if one rank computes no number."""

import pytest
import torch

from tests.integration.worker.harness import run_layout, series
from tests.integration.worker.parity_matrix import VARIANTS
from tests.support import hf
from tests.support.checkpoints import convert_checkpoint

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

STEPS = 4
ADAMW = {"name": "adamw", "lr": 0.01, "eps": 1e-6, "clip_norm": 0.5}
MUON = {"name": "muon", "lr": 0.003, "weight_decay": 0.1, "clip_norm": 0.5}
ADAFACTOR = {"name": "adafactor", "lr": 0.03, "clip_norm": 0.5}
RANKS = {"rank_pattern": {"*.0.*.q_proj": 3, "down_proj": 5}, "alpha_pattern": {"v_proj": 3}}
PROBLEMS = {
    "muon, packed": {"optimizer": MUON},
    "muon, adapters": {"optimizer": MUON, "lora": {}, "packing": False},
    "adapters, ranks, dora": {"lora": {"dora": True, **RANKS}, "adapter": "dora"},
    "adapters, ranks, nf4, muon": {"lora": {"base_dtype": "nf4", **RANKS}, "optimizer": MUON, "adapter": "plain"},
    "adapters, int8, adafactor": {"lora": {"base_dtype": "int8", "rslora": True}, "optimizer": ADAFACTOR},
    "adafactor, packed": {"optimizer": ADAFACTOR},
    "adapters, dora, skipped step": {"lora": {"dora": True}, "health": {"on_nan": "skip"}},
    "muon, skipped step": {"optimizer": MUON, "health": {"on_nan": "skip"}},
}
NO_NUMBER = {"rank": 1, "step": 2, "value": "nan"}
QUICK = (2, "layer", "adapters, ranks, dora")
LAYOUTS = [(2, "ddp"), (2, "layer"), (3, "ddp"), (3, "layer"), (3, "zero2")]


class Cases:
    def __init__(self, folder):
        self.folder = folder
        hf.save_llama(folder / "model")
        self.text = hf.write_lines(folder / "text.jsonl", hf.texts(30))
        self.save_adapter("dora", use_dora=True)
        self.save_adapter("plain")

    def save_adapter(self, name, **options):
        """Save an adapter of peft as after a training, with the ranks of `RANKS` and copies of the embeddings."""
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        targets = ["q_proj", "v_proj", "down_proj"]
        ranks = {"rank_pattern": {"layers.0.self_attn.q_proj": 3, "down_proj": 5}, "alpha_pattern": {"v_proj": 3}}
        base = AutoModelForCausalLM.from_pretrained(self.folder / "model", dtype=torch.float32)
        model = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, target_modules=targets, **ranks, **options))
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
        model.save_pretrained(self.folder / name, save_embedding_layers=True)

    def spec(self, problem, **changes):
        options = dict(PROBLEMS[problem])
        lora, adapter = options.pop("lora", None), options.pop("adapter", None)
        if lora is not None:
            lora = {"alpha": 16, "targets": ["q_proj", "v_proj", "down_proj"], **lora}
            lora |= {"adapter": str(self.folder / adapter)} if adapter else {}
            options |= {"lora_rank": 4, "lora": lora}
        packing = options.pop("packing", True)
        return {
            "version": 1,
            "task": "causal_lm",
            "precision": "fp32",
            "seed": 5,
            "model": {"source": "hf", "path": str(self.folder / "model")},
            "data": {"source": "jsonl", "path": str(self.text), "max_length": 48, "packing": packing},
            "steps": STEPS,
            "batch": {"size": 10, "micro_size": 3},
            "optimizer": ADAMW,
            "log": {"every_steps": 1},
            **options,
            **changes,
        }

    def on(self, world, variants, problems=tuple(PROBLEMS)):
        cases = {name: self.case(name) for name in problems}
        return {
            f"{name}/{variant}": {**case, "spec": case["spec"] | VARIANTS[variant]}
            for name, case in cases.items()
            for variant in variants
        }

    def case(self, problem):
        return {"spec": self.spec(problem), **({"plant": NO_NUMBER} if "skipped" in problem else {})}


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases(tmp_path_factory.mktemp("combined"))


@pytest.fixture(scope="module")
def alone(cases):
    runs = {name: cases.case(name) for name in PROBLEMS}
    half = {"half": {**cases.case(QUICK[2]), "run": "half", "until": STEPS // 2}}
    return run_layout(1, runs | half, cases.folder / "1", seconds=300)[0]


@pytest.fixture(scope="module")
def together(cases):
    return {
        world: run_layout(world, cases.on(world, variants), cases.folder / str(world), seconds=300)
        for world in (2, 3)
        if (variants := [variant for ranks, variant in LAYOUTS if ranks == world])
    }


def assert_equal(alone, results, problem, case):
    losses = series(results, case)
    assert losses == pytest.approx(series([alone], problem), rel=1e-5, nan_ok=True)
    assert losses[STEPS] != losses[1]
    expected = alone[problem]["exported"]
    assert results[0][case]["exported"].keys() == expected.keys()
    for name, values in expected.items():
        value, actual = torch.tensor(values), torch.tensor(results[0][case]["exported"][name])
        assert torch.linalg.norm(actual - value) <= 1e-4 * torch.linalg.norm(value), name


def test_continued_adapter_of_peft_on_two_ranks(cases, alone):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    world, variant, problem = QUICK
    spec = cases.spec(problem, checkpoint={"every_steps": STEPS // 2, "keep_last": 3}) | VARIANTS[variant]
    case = f"{problem}/{variant}"
    results = run_layout(world, {case: {"spec": spec, "run": "saved"}}, cases.folder / "quick", seconds=200)
    assert_equal(alone, results, problem, case)
    exported = convert_checkpoint(cases.folder / "saved", spec, cases.folder / "intermediate", STEPS // 2)
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(cases.folder / "model"), exported)
    trained = {name: value for name, value in loaded.named_parameters() if ".lora_" in name}
    assert {name.removeprefix("base_model.model.") for name in trained} == alone["half"]["exported"].keys()
    for name, value in trained.items():
        expected = torch.tensor(alone["half"]["exported"][name.removeprefix("base_model.model.")]).view(value.shape)
        assert torch.linalg.norm(value - expected) <= 1e-4 * torch.linalg.norm(expected), name


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(("world", "variant"), LAYOUTS)
def test_updates_are_those_of_one_process(alone, together, world, variant, problem):
    assert_equal(alone, together[world], problem, f"{problem}/{variant}")
