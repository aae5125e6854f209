"""A sharded start holds the shards and one tensor, and its tensors equal those of a whole model bit for bit."""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import PARTS, VARIANTS, gpt, mlp
from tests.support import hf

SLACK = 1.1
"""A factor for small buffers."""

_GPT = {"source": "builtin", "name": "gpt", "layers": 6, "width": 64, "heads": 4, "context": 32, "vocab": 257}
_LLAMA = {"source": "builtin", "name": "llama", "layers": 6, "width": 64, "heads": 4, "context": 32, "vocab": 257}
_CONVNET = {
    "task": "image_classification",
    "model": {"source": "builtin", "name": "convnet", "channels": 16},
    "data": {"source": "builtin", "name": "digits"},
    "steps": 2,
    "batch": {"size": 8},
    "checkpoint": {"export": False},
    "strategy": "fsdp",
}
CASES = {
    **{name: {"spec": gpt(steps=2, model=_GPT) | VARIANTS[name]} for name in ("zero2", "naive", "size")},
    "tied": {"spec": gpt(steps=2, model=_GPT | {"tied": True}, strategy="fsdp")},
    "lora": {"spec": gpt(steps=2, model=_GPT, strategy="fsdp", lora_rank=4)},
    "partial": {"spec": gpt(steps=2, model=_GPT, strategy="fsdp", trainable=list(PARTS["tied"]))},
    "llama": {"spec": gpt(steps=2, model=_LLAMA, strategy="fsdp")},
    "tied llama": {"spec": gpt(steps=2, model=_LLAMA | {"tied": True}, strategy="fsdp")},
    "mlp": {"spec": mlp(steps=2, strategy="fsdp")},
    "convnet": {"spec": _CONVNET},
}
CUSTOM = {
    name: {
        "spec": {
            "task": "custom",
            "target": f"tests.integration.worker.custom_tasks:{name}",
            "strategy": "fsdp",
            "steps": 2,
            "batch": {"size": 8},
        }
    }
    for name in ("Normalized", "BranchesOnValues")
}
STORED = ("stored", "stored tied", "stored in parts", "stored lora")
LARGE = [name for name in CASES if name not in ("mlp", "convnet")] + list(STORED)
"""Models whose shards are larger than their largest tensor."""


def stored_cases(folder):
    """Save models in the folder and return the cases that read them."""
    hf.save_llama(folder / "whole", layers=4)
    hf.save_llama(folder / "tied", tied=True, layers=4)
    hf.save_llama(folder / "parts", layers=4, max_shard_size="100KB")
    renamed = shutil.copytree(folder / "tied", folder / "renamed")
    tensors = load_file(renamed / "model.safetensors")
    shorter = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(shorter, renamed / "model.safetensors", {"format": "pt"})
    text = hf.write_lines(folder / "text.jsonl", hf.texts(12))

    def case(name, **changes):
        model = {"source": "hf", "path": str(folder / name)}
        data = {"source": "jsonl", "path": str(text)}
        return {"spec": gpt(steps=2, model=model, data=data, strategy="fsdp", batch={"size": 4}, **changes)}

    return {
        "stored": case("whole"),
        "stored tied": case("tied"),
        "stored in parts": case("parts"),
        "stored lora": case("whole", lora_rank=4),
        "renamed": case("renamed"),
    }


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("starts")
    stored = stored_cases(folder)
    trained = {name: {"spec": stored["stored"]["spec"] | VARIANTS[name]} for name in ("ddp", "layer", "zero1")}
    replicas = {"hsdp": {"spec": gpt(steps=2, model=_GPT) | VARIANTS["hsdp"]}}
    cases = {name: case | {"only_start": True} for name, case in (CASES | CUSTOM | stored).items()}
    results = {}

    def on(world):
        if world not in results:
            chosen = {name: cases[name] for name in ALONE} if world == 1 else cases | (trained if world == 2 else {})
            chosen |= {name: case | {"only_start": True} for name, case in replicas.items() if world == 4}
            results[world] = run_layout(world, chosen, folder / str(world))
        return results[world]

    return on


ALONE = ("tied", "lora", "stored")
"""Cases that run on one rank, too."""


def on_worlds(cases):
    """Return the tests' parameters, the cases and their numbers of ranks; four ranks are slow."""
    several = [(2, ()), (4, pytest.mark.slow)]
    return pytest.mark.parametrize(
        ("case", "world"),
        [(case, 1) for case in cases if case in ALONE]
        + [pytest.param(case, world, marks=marks) for case in cases for world, marks in several],
    )


class TestSharded:
    @on_worlds(LARGE)
    def test_host_holds_the_shards_and_one_tensor(self, starts, case, world):
        for rank in starts(world):
            start = rank[case]
            assert start["peak"] <= SLACK * (start["shards"] + start["largest"])
            assert world == 1 or start["peak"] < 0.8 * start["whole"]

    @on_worlds([*CASES, *STORED, "Normalized"])
    def test_tensors_and_generator_equal_those_of_a_whole_model(self, starts, case, world):
        for rank in starts(world):
            assert rank[case]["events"] == {}
            assert rank[case]["differing"] == []
            assert rank[case]["same_generator"]


class TestWhole:
    @pytest.mark.parametrize(
        ("case", "reason"),
        [
            ("renamed", "`model.embed_tokens.weight` has 0 tensors in the files"),
            ("BranchesOnValues", "_local_scalar_dense"),
        ],
    )
    def test_event_names_the_reason(self, starts, case, reason):
        for rank in starts(2):
            assert rank[case]["differing"] == []
            assert reason in rank[case]["events"]["whole_model_built"]


@pytest.mark.parametrize("strategy", ["layer", "zero1"])
def test_stored_model_with_units_for_its_ends_trains_as_under_ddp(starts, strategy):
    expected, sharded = (starts(2)[0][name]["series"] for name in ("ddp", strategy))
    for key in ("train/loss", "train/grad_norm"):
        values = {step: float(value) for step, value in expected[key].items()}
        assert {step: float(value) for step, value in sharded[key].items()} == pytest.approx(values, rel=1e-5)


@pytest.mark.slow
class TestReplicas:
    def test_each_replica_is_filled(self, starts):
        for rank in starts(4):
            start = rank["hsdp"]
            assert start["differing"] == []
            assert start["peak"] <= SLACK * (start["shards"] + start["largest"])
