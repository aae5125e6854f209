"""Specs that fit, refused specs and proposed changes."""

import pytest

from service.core.setting_parsers import parse_gpu_memory
from service.plugins.planner import builtin_models
from service.plugins.planner.devices import GIB, Device, device_of, devices, share_of_machine
from service.plugins.planner.fit import FitEstimator, choose_strategy, describe_need
from service.plugins.planner.proposals import exceeds_memory
from service.plugins.planner.trainable_parameters import trainable_model
from tests.unit.service.plugins.planner.test_model_structure import spec_of
from trainyard.contract.spec.sections import Resources
from trainyard.contract.wire.cluster import ClusterResource, NodeShape, PartitionResource

LARGE = {"source": "builtin", "name": "gpt", "layers": 24, "width": 2048, "heads": 16, "context": 1024, "vocab": 32000}
"""1.3 billion parameters: 19 GiB of state."""


def estimator(gib):
    known = [Device("x", int(gib * GIB), int(gib * GIB))] if gib else [Device("x")]
    return FitEstimator(builtin_models.structure_of(spec_of(LARGE).model), known)


def spec(**changes):
    batch = {"size": 8, "micro_size": 1}
    return spec_of(LARGE, precision="bf16", **{"gpus": 4, "strategy": "ddp", "batch": batch, **changes})


class TestRefusals:
    def test_excess_memory_is_reported_with_the_cheapest_change(self):
        problem = exceeds_memory(estimator(24), spec())[0]
        assert problem.param == "strategy"
        assert problem.message.startswith(
            "needs about 28.4 GiB of 24 GiB per GPU: optimizer 9.51 GiB, parameters 4.75 GiB, "
        )
        assert problem.message.endswith("strategy fsdp: 7.01 GiB would fit")

    def test_fitting_spec_has_no_problem(self):
        assert exceeds_memory(estimator(80), spec()) == []

    def test_uncertain_excess_is_no_problem(self):
        needed = estimator(80).estimate(spec()).peak / GIB
        near = estimator(0.95 * needed)
        assert near.fits(near.estimate(spec())) is False
        assert exceeds_memory(near, spec()) == []

    def test_unknown_gpu_memory_is_no_problem(self):
        assert exceeds_memory(estimator(0), spec()) == []

    def test_possible_larger_gpu_is_no_problem(self):
        several = FitEstimator(
            estimator(24).structure, [Device("a", 24 * GIB, 24 * GIB), Device("b", 80 * GIB, 80 * GIB)]
        )
        assert several.fits(several.estimate(spec())) is False
        assert exceeds_memory(several, spec()) == []

    def test_auto_micro_size_is_halved_until_it_fits(self):
        result = estimator(24).estimate(spec(strategy="fsdp", batch={"size": 64, "micro_size": "auto"}))
        assert 1 <= result.micro_size < 16
        assert estimator(24).fits(result)

    def test_smallest_peak_is_used_if_no_micro_size_fits(self):
        automatic_size = {"size": 4, "micro_size": "auto"}
        whole = estimator(80).estimate(spec(gpus=2, batch={"size": 4, "micro_size": 2}))
        assert estimator(4).estimate(spec(gpus=2, batch=automatic_size)).peak == whole.peak

    def test_training_state_alone_can_exceed_memory(self):
        structure = estimator(1).structure
        state_only = FitEstimator(
            type(structure)(structure.parameters, structure.blocks), [Device("x", 8 * GIB, 8 * GIB)]
        )
        estimate = state_only.estimate(spec(strategy="single", gpus=1))
        assert estimate.memory is None
        assert describe_need(state_only, estimate).endswith("of 8 GiB per GPU, without activations")
        assert exceeds_memory(state_only, spec(strategy="single", gpus=1))


class TestWithoutGpus:
    def estimator(self, gib, ranks=1):
        return FitEstimator(estimator(0).structure, [share_of_machine(int(gib * GIB), ranks)], cpu=True)

    def test_cpu_ranks_share_the_machine_memory(self):
        requested = spec(gpus=2)
        assert self.estimator(64).fits(self.estimator(64).estimate(requested))
        halves = self.estimator(64, ranks=4)
        assert halves.fits(halves.estimate(requested)) is False
        messages = describe_need(halves, halves.estimate(requested))
        assert messages.startswith(
            "needs about 28.4 GiB of 16 GiB per rank (this machine's memory): optimizer 9.51 GiB, "
        )

    def test_small_models_fit_a_small_machine(self):
        tiny = builtin_models.structure_of(spec_of({**LARGE, "layers": 1, "width": 64, "vocab": 256}).model)
        small = FitEstimator(tiny, [share_of_machine(4 * GIB, 4)], cpu=True)
        assert small.fits(small.estimate(spec_of({**LARGE, "layers": 1, "width": 64, "vocab": 256})))

    def test_cpu_run_cannot_fit_only_if_its_state_exceeds_the_machine(self):
        state = self.estimator(64).estimate(spec()).least / GIB
        assert exceeds_memory(self.estimator(state + 0.1), spec()) == []
        problem = exceeds_memory(self.estimator(state - 0.1), spec())[0]
        assert problem.message.endswith("strategy fsdp: 7.01 GiB would fit")

    def test_more_cpu_ranks_are_not_proposed(self):
        problem = exceeds_memory(self.estimator(0.1), spec())[0]
        assert problem.message.endswith("no change of strategy or checkpointing would fit")

    def test_large_sizes_use_the_next_unit(self):
        requested = spec_of({**LARGE, "layers": 96, "width": 12288, "heads": 96}, gpus=2, strategy="ddp")
        huge = FitEstimator(builtin_models.structure_of(requested.model), [share_of_machine(23 * GIB, 2)], cpu=True)
        assert " TiB of 11.5 GiB per rank" in describe_need(huge, huge.estimate(requested))


class TestAutomatic:
    def test_auto_selects_ddp_if_it_fits(self):
        assert choose_strategy(estimator(80), spec())[0] == "ddp"

    def test_auto_selects_the_least_sharding_that_fits(self):
        assert choose_strategy(estimator(24), spec())[0] == "zero2"
        assert choose_strategy(estimator(10), spec())[0] == "fsdp"

    def test_auto_selects_ddp_if_nothing_is_known_or_fits(self):
        assert choose_strategy(estimator(0), spec())[0] == "ddp"
        assert choose_strategy(estimator(2), spec())[0] == "ddp"


class TestDevices:
    @pytest.mark.parametrize(
        ("name", "least", "most"),
        [
            ("a100", 39.4, 80),
            ("nvidia_a100_80gb_pcie", 76, 80),
            ("tesla_v100-sxm2-32gb", 30.4, 32),
            ("1g.10gb", 9, 10),
            ("nvidia_geforce_rtx_3090", 24, 24),
            ("nvidia_rtx_a6000", 48, 48),
            ("mine", 7, 7),
        ],
    )
    def test_device_memory_by_type_name(self, name, least, most):
        result = device_of(name, {"mine": 7.0})
        assert (round(result.min_bytes / GIB, 1), round(result.max_bytes / GIB, 1)) == (least, most)

    def test_unknown_type_has_no_memory(self):
        assert device_of("gpu9000", {}) == Device("gpu9000")

    def test_devices_of_the_partition(self):
        cluster = ClusterResource(
            backend="slurm",
            partitions=[
                PartitionResource(name="a", default=True, shapes=[NodeShape(nodes=1, gpus={"t4": 1})]),
                PartitionResource(name="b", shapes=[NodeShape(nodes=1, gpus={"l4": 1}), NodeShape(nodes=1)]),
            ],
        )
        types = [
            [gpu.type for gpu in devices(Resources(**requested), cluster, {})]
            for requested in ({}, {"partition": "a,b"})
        ]
        assert types == [["t4"], ["l4", "t4"]]
        assert [gpu.type for gpu in devices(Resources(gpu_type="h100"), cluster, {})] == ["h100"]

    def test_setting_overrides_the_table(self):
        assert parse_gpu_memory("gtx1080=8, =24") == {"gtx1080": 8.0, "": 24.0}
        for bad in ("a100", "a100=", "a100=big", "a100=0"):
            with pytest.raises(ValueError, match="is not <type>=<GiB>"):
                parse_gpu_memory(bad)


def test_structure_is_visited_once_for_all_strategies(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "service.plugins.planner.fit.trainable_model", lambda *given: calls.append(1) or trainable_model(*given)
    )
    choose_strategy(estimator(10), spec())
    assert len(calls) == 1
