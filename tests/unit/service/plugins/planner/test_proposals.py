"""Changes that make a spec fit."""

import pytest

from service.plugins.planner import builtin_models
from service.plugins.planner.devices import GIB, Device
from service.plugins.planner.fit import FitEstimator
from service.plugins.planner.proposals import propose_changes
from tests.unit.service.plugins.planner.test_fit import estimator, spec
from tests.unit.service.plugins.planner.test_model_structure import spec_of

LLAMA_8B = {
    "source": "builtin",
    "name": "llama",
    "layers": 32,
    "width": 4096,
    "heads": 32,
    "key_value_heads": 8,
    "feed_forward": 14336,
    "context": 2048,
    "vocab": 128256,
}

ROUNDED = {"param_dtype": "bf16", "grad_dtype": "bf16", "optimizer.state_dtype": "int8"}


class TestProposals:
    def test_smaller_micro_batch_is_proposed_first(self):
        result = propose_changes(estimator(80), spec(batch={"size": 128, "micro_size": 32}))
        assert result[0].set == {"batch.micro_size": 16}

    def test_lora_is_proposed_last_with_a_note(self):
        result = propose_changes(estimator(14), spec(gpus=1, strategy="single", batch={"size": 1, "micro_size": 1}))
        assert [set(one.set) == {"lora_rank"} for one in result] == [False, False, True]
        assert "trains only adapters" in result[2].message

    def test_offloading_is_proposed_for_one_gpu_that_is_too_small(self):
        too_large = spec(gpus=1, strategy="single", batch={"size": 1, "micro_size": 1})
        chosen = propose_changes(estimator(14), too_large, count=9)
        offload = {"strategy": "fsdp", "activation_checkpointing": "offload", "fsdp.cpu_offload": True}
        assert [one.set for one in chosen if "lora_rank" not in one.set] == [ROUNDED, offload]

    def test_nf4_is_proposed_where_adapters_alone_do_not_fit(self):
        small = spec(gpus=1, strategy="single", batch={"size": 1, "micro_size": 1}, activation_checkpointing="full")
        adapters = [one for one in propose_changes(estimator(5), small, count=9) if "lora_rank" in one.set]
        assert adapters[0].set == {"lora_rank": 16, "lora.base_dtype": "nf4"}
        assert adapters[0].message.startswith("lora_rank 16 and lora.base_dtype nf4 (rounds the base, so the result")

    def test_base_in_bf16_is_proposed_for_adapters(self):
        adapted = spec(gpus=1, strategy="single", lora_rank=16, activation_checkpointing="full")
        assert propose_changes(estimator(6.5), adapted)[0].set == {"lora.base_dtype": "bf16"}

    def test_each_change_is_proposed_once(self):
        result = propose_changes(estimator(40), spec(strategy="fsdp", batch={"size": 128, "micro_size": 32}), count=9)
        assert len({str(one.set) for one in result}) == len(result) > 2


class TestMemoryOptions:
    """An 8B model that one GPU of 80 GiB trains only with fewer bits or host memory."""

    def proposals(self, gib=80, **changes):
        fields = {"precision": "bf16", "strategy": "single", "activation_checkpointing": "full", "batch": {"size": 8}}
        requested = spec_of(LLAMA_8B, **(fields | changes))
        structure = builtin_models.structure_of(requested.model)
        return propose_changes(FitEstimator(structure, [Device("h100", gib * GIB, gib * GIB)]), requested)

    def test_rounded_states_come_before_offload_and_more_gpus(self):
        states, offload, gpus = self.proposals()
        assert states.set == ROUNDED
        assert offload.set == {"strategy": "fsdp", "activation_checkpointing": "offload", "fsdp.cpu_offload": True}
        assert gpus.set == {"gpus": 2, "strategy": "fsdp"}

    def test_changes_of_the_result_are_stated(self):
        states, offload, gpus = self.proposals()
        assert "(rounds parameters, gradients and moments, so the result differs)" in states.message
        assert "differs" not in offload.message + gpus.message

    @pytest.mark.parametrize("changes", [{"optimizer": {"name": "muon"}}, {"precision": "fp32"}])
    def test_refused_data_types_are_not_proposed(self, changes):
        assert not any("param_dtype" in one.set for one in self.proposals(**changes))

    def test_rounded_moments_alone_are_proposed_if_they_suffice(self):
        assert self.proposals(gib=96)[0].set == {"optimizer.state_dtype": "int8"}
