"""The bill of whole steps: no wait for the device in steps that do not log, no graph break, no recompilation."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from bench._bill import Bill
from tests.support.step_memory import build_parallel_model, engine
from trainyard.contract.spec.training_spec import parse_spec
from worker.tasks.select import select_task

SIZES = {"layers": 3, "width": 32, "heads": 4, "context": 32, "vocab": 257}
LLAMA, GPT = ({"source": "builtin", "name": name} | SIZES for name in ("llama", "gpt"))
STORED = {"param_dtype": "bf16", "grad_dtype": "bf16"}
RECIPES = {
    "fp32": {"precision": "fp32"},
    "bf16": {},
    "gpt": {"model": GPT},
    "micro-batches": {"batch": {"size": 4, "micro_size": 2}},
    "halves": STORED | {"optimizer": {"name": "adamw", "lr": 0.01, "clip_norm": 1.0, "state_dtype": "bf16"}},
    "adapters": {"lora_rank": 4},
    "recomputed": {"activation_checkpointing": "selective"},
    "adapters, recomputed": {"lora_rank": 4, "activation_checkpointing": "selective"},
    "quantized": {"lora_rank": 4, "lora": {"base_dtype": "nf4"}},
    "answers": {"data": "completions"},
    "packed": {"data": "packed"},
}
LATER_GRAPHS = {"answers": 1, "packed": 1}
"""Graphs of layers beside that of the warm-up: the second shape makes a graph for all lengths of rows."""
STEPS = 4


@pytest.fixture
def files(tmp_path):
    path = tmp_path / "lines.jsonl"
    rows = [{"prompt": "ab" * (number % 4), "completion": "c" * (1 + number % 7)} for number in range(32)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"source": "jsonl", "path": str(path)}


def steps_of(recipe, files, *, compiled=False):
    """Return the training step, its batches, and the model of a recipe."""
    changes = dict(RECIPES[recipe])
    data = {"source": "builtin", "name": "stdlib"}
    if kind := changes.pop("data", None):
        data = files | {"packing": kind == "packed"}
    document = {
        "task": "causal_lm", "steps": STEPS, "model": LLAMA, "data": data, "strategy": "single", "precision": "bf16",
        "batch": {"size": 4, "micro_size": 4}, "optimizer": {"name": "adamw", "lr": 0.01, "clip_norm": 1.0},
        "compile": compiled,
    }  # fmt: skip
    spec = parse_spec(document | changes)
    ranks = SimpleNamespace(
        rank=0, world=1, device=torch.device("cpu"), is_rank_0=True, gather_text=lambda text: [text]
    )
    task = select_task(spec)
    return engine(spec, task, ranks, build_parallel_model(spec, task, ranks))


@pytest.mark.parametrize("recipe", RECIPES)
def test_steps_that_do_not_log_wait_for_nothing(recipe, files):
    step, batches = steps_of(recipe, files)
    step.run(1, batches.at(0), log_due=False)
    (optimizer,) = step._optimizers
    # Counts of updates are on the host also where the parameters are not.
    counts = [state["step"] for state in optimizer.state.values()] if recipe == "halves" else []
    with Bill(counts) as bill:
        for number in range(1, STEPS):
            step.run(number + 1, batches.at(number), log_due=False)
    assert bill.phases["other"].launches > 100
    assert bill.phases["other"].synchronisations == 0


@pytest.mark.heavy
@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "halves"])
def test_layers_are_compiled_once_and_whole(recipe, files, monkeypatch):
    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: original(self, backend="aot_eager"))
    torch._dynamo.reset()
    step, batches = steps_of(recipe, files, compiled=True)
    counters.clear()
    for number in range(STEPS):
        step.run(number + 1, batches.at(number), log_due=number == 2)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == LATER_GRAPHS.get(recipe, 0)
