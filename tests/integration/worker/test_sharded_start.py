"""A sharded start holds the shards and one tensor, and its tensors equal those of a whole model bit for bit."""

import pytest

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import PARTS, VARIANTS, gpt, mlp

SLACK = 1.1
"""A factor for small buffers."""

_GPT = {"source": "builtin", "name": "gpt", "layers": 6, "width": 64, "heads": 4, "context": 32, "vocab": 257}
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
    **{name: {"spec": gpt(steps=2, model=_GPT) | variant} for name, variant in VARIANTS.items() if name != "hsdp"},
    "tied": {"spec": gpt(steps=2, model=_GPT | {"tied": True}, strategy="fsdp")},
    "untied": {"spec": gpt(steps=2, model=_GPT | {"tied": False}, strategy="fsdp")},
    "lora": {"spec": gpt(steps=2, model=_GPT, strategy="fsdp", lora_rank=4)},
    "partial": {"spec": gpt(steps=2, model=_GPT, strategy="fsdp", trainable=list(PARTS["tied"]))},
    "mlp": {"spec": mlp(steps=2, strategy="fsdp")},
    "convnet": {"spec": _CONVNET},
}
del CASES["ddp"]
LARGE = [name for name in CASES if name not in ("mlp", "convnet")]
"""Models whose shards are larger than their largest tensor."""


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("starts")
    cases = {name: case | {"only_start": True} for name, case in CASES.items()}
    results = {}

    def on(world):
        if world not in results:
            hsdp = {"hsdp": {"spec": gpt(steps=2, model=_GPT) | VARIANTS["hsdp"], "only_start": True}}
            results[world] = run_layout(world, cases | (hsdp if world == 4 else {}), folder / str(world))
        return results[world]

    return on


WORLDS = [1, 2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.mark.parametrize("world", WORLDS)
class TestSharded:
    @pytest.mark.parametrize("case", LARGE)
    def test_host_holds_the_shards_and_one_tensor(self, starts, case, world):
        for rank in starts(world):
            start = rank[case]
            assert start["peak"] <= SLACK * (start["shards"] + start["largest"])
            assert world == 1 or start["peak"] < 0.8 * start["whole"]

    @pytest.mark.parametrize("case", CASES)
    def test_tensors_and_generator_equal_those_of_a_whole_model(self, starts, case, world):
        for rank in starts(world):
            assert rank[case]["events"] == {}
            assert rank[case]["differing"] == []
            assert rank[case]["same_generator"]


@pytest.mark.slow
class TestReplicas:
    def test_each_replica_is_filled(self, starts):
        for rank in starts(4):
            start = rank["hsdp"]
            assert start["differing"] == []
            assert start["peak"] <= SLACK * (start["shards"] + start["largest"])
