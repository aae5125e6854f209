"""`python -m bench.planner`: the planner's predicted peak memory compared with the measured one, on a grid of runs.

The peak is measured in the third step, with gradient clipping and logging, as the bytes of live tensors on rank 0.
`docs/planner.md` has the resulting table. `python -m bench.gpu --phase memory` measures on a GPU.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from bench._ranks import Plan, run_ranks, serve_rank
from service.plugins.planner.block_model import BlockModel
from service.plugins.planner.fit import Estimate, FitEstimator
from service.plugins.planner.host_and_disk import start_bytes
from service.plugins.planner.model_reader import ModelReader
from tests.support import hf
from tests.support.step_memory import measure
from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS
from trainyard.contract.kinds.strategies import STRATEGIES
from trainyard.contract.sizes import MIB
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec
from worker.core import distributed
from worker.data.builtin import load_stdlib
from worker.tasks.select import select_task

ALLOWED_ERROR = 0.1
"""The largest accepted error, relative to the measured peak."""

Document = dict[str, Any]

_BUILTIN: dict[str, Document] = {
    "gpt small": {"layers": 4, "width": 128, "heads": 4, "context": 64, "vocab": 256},
    "gpt medium": {"layers": 8, "width": 256, "heads": 8, "context": 128, "vocab": 4096},
    "gpt untied": {"layers": 4, "width": 256, "heads": 8, "context": 64, "vocab": 8192, "tied": False},
    "builtin llama": {"name": "llama", "layers": 8, "width": 256, "heads": 8, "key_value_heads": 2, "vocab": 4096},
}


@dataclass(frozen=True)
class Case:
    """A run of the grid and its name in the table."""

    name: str
    document: Document


def main() -> int:
    """Print the table; return 1 if a prediction's error is too large, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.planner", description="Predicted and measured memory.")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    only = parser.parse_args().only
    print("predicted and measured peaks of rank 0 in MiB, cpu: of a step, and of a sharded start")
    columns = f"{'model':24}{'ranks':>6} {'strategy':9}{'prec.':7}{'checkpointing':15}"
    print(f"{columns}{'predicted':>10}{'measured':>10}{'':8}{'start':>10}{'measured':>10}")
    worst, count = 0.0, 0
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        llama = _llama(Path(folder))
        for ranks in (1, 2):
            cases = [case for case in grid(ranks, llama) if only in case.name]
            if cases:
                errors = compare(cases, ranks)
                worst, count = max(worst, *errors), count + len(cases)
    met = worst <= ALLOWED_ERROR
    print(f"{count} runs, largest error {worst:.1%}; allowed: {ALLOWED_ERROR:.0%}" + ("" if met else "  MISSED"))
    return 0 if met else 1


def grid(ranks: int, llama: Document) -> list[Case]:
    """Return the cases: each model with each strategy and precision, some with checkpointing or accumulation."""
    strategies = ("single",) if ranks == 1 else ("ddp", "zero2", "fsdp")
    models: dict[str, Document] = {
        "mlp": _mlp(),
        **{name: _decoder(sizes) for name, sizes in _BUILTIN.items()},
        "llama": llama,
        "llama, LoRA": {**llama, "lora_rank": 8},
        "llama, LoRA, bf16 base": {**llama, "lora_rank": 8, "lora": {"base_dtype": "bf16"}},
        "llama, QLoRA": {**llama, "lora_rank": 8, "lora": {"base_dtype": "nf4"}},
    }
    cases = []
    for strategy in strategies:
        for name, document in models.items():
            for precision in ("fp32", "bf16"):
                cases.append(_case(name, document, ranks, strategy, precision))
            if name != "mlp":
                cases.append(_case(name, document, ranks, strategy, "bf16", activation_checkpointing="full"))
        cases.append(_case("gpt small, accumulated", models["gpt small"], ranks, strategy, "fp32", parts=2))
        cases.append(
            _case("gpt small", models["gpt small"], ranks, strategy, "fp32", activation_checkpointing="selective")
        )
    cases += [*_stored_dtypes(models, ranks), *_preferences(llama, ranks)]
    if ranks > 1:
        cases.append(_case("gpt medium, accumulated", models["gpt medium"], ranks, "zero1", "fp32", parts=2))
        cases.append(_case("gpt medium, accumulated", models["gpt medium"], ranks, "ddp", "bf16", parts=2))
    return cases


def _stored_dtypes(models: dict[str, Document], ranks: int) -> list[Case]:
    """Return cases with parameters in bf16, and moments in fp32 and int8."""
    half: Document = {"param_dtype": "bf16", "grad_dtype": "bf16"}
    int8: Document = {"optimizer": {"state_dtype": "int8"}}
    strategies = ("single",) if ranks == 1 else ("ddp", "fsdp")
    return [
        _case(f"{name}, {suffix}", models[name], ranks, strategy, "bf16", **more)
        for strategy in strategies
        for name in ("gpt untied", "builtin llama")
        for suffix, more in (("halves", half), ("int8", half | int8))
        if name in models
    ]


def _preferences(llama: Document, ranks: int) -> list[Case]:
    """Return cases of objectives with two answers in an example."""
    path = Path(llama["data"]["path"]).with_name("preferences.jsonl")
    text = Path(llama["data"]["path"]).read_text()[20:1000]
    answers = {"chosen": text, "rejected": text[::-1], "completion": text}
    with path.open("w") as file:
        file.writelines(json.dumps({"prompt": str(n), "label": n % 2 == 0, **answers}) + "\n" for n in range(64))
    data = llama["data"] | {"path": str(path), "format": "auto"}
    runs: dict[str, Document] = {
        "DPO": {"objective": "dpo"},
        "DPO, LoRA": {"objective": "dpo", "lora_rank": 8},
        "KTO": {"objective": "kto"},
    }
    strategies = ("single",) if ranks == 1 else ("ddp", "fsdp")
    return [
        _case(f"llama, {name}", {**llama, "data": data, **changes}, ranks, strategy, precision)
        for strategy in strategies
        for name, changes in runs.items()
        for precision in ("fp32", "bf16")
    ]


def _case(
    name: str, document: Document, ranks: int, strategy: str, precision: str, parts: int = 1, **more: Any
) -> Case:
    size = document["batch"]["size"]
    batch = {**document["batch"], "size": size * parts, "micro_size": size // ranks}
    fields = {"gpus": ranks, "strategy": strategy, "precision": precision, "steps": 5, "batch": batch}
    return Case(name, {**document, **fields, **more})


def _mlp() -> Document:
    return {
        "task": "regression",
        "model": {"source": "builtin", "name": "mlp", "sizes": [256, 1024, 1024, 64]},
        "data": {"source": "builtin", "name": "parity", "examples": 400},
        "batch": {"size": 64},
        "checkpoint": {"export": False},
    }


def _decoder(sizes: Document) -> Document:
    return {
        "task": "causal_lm",
        "model": {"source": "builtin", "name": "gpt", **sizes},
        "data": {"source": "builtin", "name": "stdlib", "eval_fraction": 0},
        "batch": {"size": 8},
        "checkpoint": {"export": False},
    }


def _llama(folder: Path) -> Document:
    """Write a Llama with random weights, its tokenizer and a text; return a spec document that trains on them."""
    text = bytes(load_stdlib(2**16).numpy()).decode(errors="replace")
    # The text is one line, so that all examples but the last have the same length.
    (folder / "text.jsonl").write_text(json.dumps({"text": text}))
    hf.train_tokenizer([text]).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    data = {"source": "jsonl", "path": str(folder / "text.jsonl"), "format": "text", "packing": False}
    return {
        "task": "causal_lm",
        "model": {"source": "hf", "path": str(folder)},
        # One token more than the sequence of 64: the first token is no target and the last one no input.
        "data": data | {"max_length": 65},
        "batch": {"size": 8, "last": "drop"},
        "optimizer": {"name": "adamw", "lr": 0.001, "clip_norm": 1.0},
        "log": {"every_steps": 10},
        "checkpoint": {"export": False},
    }


def compare(cases: list[Case], ranks: int) -> list[float]:
    """Run the cases in one process group, print a line for each, and return the relative errors."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        results = run_ranks("bench.planner", {"documents": [case.document for case in cases]}, ranks, Path(folder))
    errors = []
    for case, measured in zip(cases, results, strict=True):
        predicted, start = predict(case.document)
        errors.append(abs(predicted / measured["peak"] - 1))
        spec, is_sharded = case.document, STRATEGIES[case.document["strategy"]].is_sharded
        print(
            f"{case.name:24}{ranks:>6} {spec['strategy']:9}{spec['precision']:7}"
            f"{spec.get('activation_checkpointing', 'none'):15}{predicted / MIB:10.2f}{measured['peak'] / MIB:10.2f}"
            f"{predicted / measured['peak'] - 1:+8.1%}"
            + (f"{start / MIB:10.2f}{measured['start'] / MIB:10.2f}" if is_sharded else "")
        )
    return errors


def predict(document: Document) -> tuple[int, int]:
    """Return the predicted peaks of a step and of the start in bytes, as `POST /v1/plans` computes them."""
    spec = resolve(parse_spec(document), Site())
    model = ModelReader().find(spec, UNRESTRICTED_ROOTS, "bench")
    assert model.structure is not None, model.unknown
    estimator = FitEstimator(model.structure, context=model.context)
    estimate, trained = estimator.estimate(spec), estimator.model(spec)
    assert isinstance(estimate, Estimate), estimate
    assert isinstance(trained, BlockModel), trained
    return estimate.peak, start_bytes(spec, trained.trainable, cpu=True)


def measure_on_rank(plan: Plan) -> tuple[distributed.Ranks, list[dict[str, int]]]:
    """Run three steps of the engine for each spec of the plan, and return the memory of each."""
    specs = [resolve(parse_spec(document), Site()) for document in plan["documents"]]
    ranks = distributed.join(specs[0])
    measurements = []
    for spec in specs:
        ranks.barrier()
        measurements.append(measure(spec, select_task(spec), ranks))
    return ranks, measurements


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        serve_rank(measure_on_rank)
    sys.exit(main())
