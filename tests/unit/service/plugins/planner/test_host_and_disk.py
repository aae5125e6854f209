"""Host memory of a rank's start."""

import pytest

from service.plugins.planner import builtin_models
from service.plugins.planner.host_and_disk import INTERPRETER, host_bytes
from service.plugins.planner.model_structure import ModelStructure, Parameter
from service.plugins.planner.trainable_parameters import trainable_model
from tests.unit.service.plugins.planner.test_model_structure import GPT, spec_of
from trainyard.contract.spec.decoders import GptModel

MODEL = builtin_models.structure_of(GptModel(**GPT))
LARGEST = 4 * GPT["vocab"] * GPT["width"]


def start(structure=MODEL, *, cpu=False, **changes):
    spec = spec_of(gpus=4, checkpoint={"asynchronous": False}, **{"strategy": "fsdp", **changes})
    return host_bytes(spec, trainable_model(structure, spec), None, cpu=cpu) - INTERPRETER


def test_sharded_start_on_gpus_holds_the_largest_tensor():
    assert start() == LARGEST


@pytest.mark.parametrize("changes", [{"cpu": True}, {"fsdp": {"cpu_offload": True}}])
def test_shards_on_the_host_are_counted(changes):
    assert start(**changes) == LARGEST + MODEL.count


def test_replicated_start_holds_the_whole_model():
    assert start(strategy="ddp") == 4 * MODEL.count


def test_model_of_an_unknown_family_is_whole():
    structure = ModelStructure((Parameter("a.weight", (8, 8)), Parameter("b.weight", (8, 8))), ())
    assert start(structure) == 4 * structure.count
