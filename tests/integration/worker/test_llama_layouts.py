"""The builtin Llama makes the updates of one process under every strategy, and its sharded checkpoints are exported."""

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import ADAMW, VARIANTS, mlp
from tests.support.checkpoints import export_request
from tests.support.hf import texts, write_lines
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.training_spec import parse_spec
from worker.export.checkpoint import export_checkpoint

pytestmark = pytest.mark.timeout(300)

STEPS = 6
TRAINED = {
    "untied": {},
    "tied": {"model": {"tied": True}},
    "lora": {"lora_rank": 2, "lora": {"alpha": 8}},
    "partial": {"model": {"tied": True}, "trainable": ["model.layers.1.*", "lm_head.weight"]},
}
SIZED = {"strategy": "fsdp", "fsdp": {"wrap": "size", "min_params": 1500}}
SPREAD = VARIANTS | {"size": SIZED}
LAYOUTS = [
    *((2, name, trained) for name in SPREAD if name != "hsdp" for trained in ("untied", "tied")),
    *((2, name, trained) for name in ("ddp", "layer") for trained in ("lora", "partial")),
]
SLOW_LAYOUTS = [(3, name, trained) for name in ("zero1", "zero2", "layer", "size") for trained in ("untied", "tied")]
RECOMPUTED = [("full", "ddp"), ("selective", "layer"), ("offload", "ddp"), ("offload", "layer")]


def spec(folder, trained):
    """Return a run on packed rows of texts, two or three in a row."""
    changes = TRAINED[trained]
    sizes = {"layers": 2, "width": 16, "heads": 4, "key_value_heads": 2, "feed_forward": 40, "context": 64}
    model = {"source": "builtin", "name": "llama", "vocab": 257, **sizes, **changes.get("model", {})}
    document = mlp(
        task="causal_lm",
        model=model,
        data={"source": "jsonl", "path": str(folder / "texts.jsonl")},
        steps=STEPS,
        batch={"size": 10, "micro_size": 3},
        optimizer=ADAMW | {"clip_norm": 0.5},
    )
    return {**document, **{key: value for key, value in changes.items() if key != "model"}}


def cases_on(folder, layouts):
    saved = {"spec": spec(folder, "tied") | SPREAD["layer"], "run": "saved"}
    cases = {"saved": saved} | {
        f"{trained}/{name}": {"spec": spec(folder, trained) | SPREAD[name]} for _, name, trained in layouts
    }
    return cases | {
        f"{how}/{name}": {"spec": spec(folder, "untied") | SPREAD[name] | {"activation_checkpointing": how}}
        for how, name in RECOMPUTED
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    write_lines(folder / "texts.jsonl", [{"text": text["text"][:40]} for text in texts(40)])
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    return run_layout(1, {name: {"spec": spec(folder, name)} for name in TRAINED}, folder / "1")[0]


@pytest.fixture(scope="module")
def on_two(folder):
    return run_layout(2, cases_on(folder, LAYOUTS), folder / "2")


@pytest.fixture(scope="module")
def on_three(folder):
    return run_layout(3, cases_on(folder, SLOW_LAYOUTS), folder / "3")


def test_checkpoint_of_two_shards_becomes_a_model(on_two, folder, tmp_path):
    (checkpoint,) = RunLayout(folder / "saved").complete_checkpoints()
    request = export_request(checkpoint, parse_spec(spec(folder, "tied")), tmp_path / "export")
    assert export_checkpoint(request, lambda _: None) == ("model", "fp32")
    weights, trained = load_file(tmp_path / "export" / "model.safetensors"), on_two[0]["saved"]["parameters"]
    assert weights.keys() == trained.keys() - {"lm_head.weight"}
    for name, tensor in weights.items():
        assert torch.equal(tensor.flatten(), torch.tensor(trained[name])), name


def series(result, key):
    return {int(step): float(value) for step, value in result["series"][key].items()}


@pytest.mark.parametrize(
    ("world", "variant", "trained"), [*LAYOUTS, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW_LAYOUTS)]
)
def test_updates_equal_those_of_one_process(request, alone, world, variant, trained):
    together = request.getfixturevalue("on_two" if world == 2 else "on_three")[0][f"{trained}/{variant}"]
    for key in ("train/loss", "train/grad_norm"):
        expected = series(alone[trained], key)
        assert len(expected) == STEPS
        assert series(together, key) == pytest.approx(expected, rel=1e-5)
    assert together["parameters"].keys() == alone[trained]["parameters"].keys()
    for name, values in alone[trained]["parameters"].items():
        expected, result = torch.tensor(values), torch.tensor(together["parameters"][name])
        assert torch.linalg.norm(result - expected) <= 1e-5 * torch.linalg.norm(expected), name


@pytest.mark.parametrize(("how", "variant"), RECOMPUTED)
def test_recomputed_activations_give_identical_losses(on_two, how, variant):
    again, reference = (on_two[0][f"{name}/{variant}"] for name in (how, "untied"))
    assert again["series"]["train/loss"] == reference["series"]["train/loss"]
    assert again["parameters"] == reference["parameters"]
