"""What fits, what is refused, and what is proposed."""

import pytest

from service.core.setting_parsers import parse_gpu_memory
from service.planner import builtin_models as builtin
from service.planner.devices import GIB, Device, device_of, devices
from service.planner.fit import Question, automatic, needs, proposals, too_large
from service.planner.host import share_of_machine
from service.planner.trainable_parameters import adapt
from tests.unit.service.planner.test_model_structure import spec_of
from trainyard.contract.spec.sections import Resources
from trainyard.contract.wire.cluster import ClusterResource, NodeShape, PartitionResource

LARGE = {"source": "builtin", "name": "gpt", "layers": 24, "width": 2048, "heads": 16, "context": 1024, "vocab": 32000}
"""1.3 billion parameters: 19 GiB of state."""


def question(gib):
    known = [Device("x", int(gib * GIB), int(gib * GIB))] if gib else [Device("x")]
    return Question(builtin.outline_of(spec_of(LARGE).model), known)


def spec(**changes):
    batch = {"size": 8, "micro_size": 1}
    return spec_of(LARGE, precision="bf16", **{"gpus": 4, "strategy": "ddp", "batch": batch, **changes})


class TestRefusals:
    def test_the_numbers_and_the_cheapest_change(self):
        problem = too_large(question(24), spec())[0]
        assert problem.param == "strategy"
        assert problem.message.startswith("needs about 28.4 GiB of 24 GiB per GPU: optimizer 9.51, parameters 4.75, ")
        assert problem.message.endswith("strategy fsdp: 6.96 GiB would fit")

    def test_what_fits_is_not(self):
        assert too_large(question(80), spec()) == []

    def test_nor_what_is_in_doubt(self):
        needed = question(80).estimate(spec()).peak / GIB
        near = question(0.95 * needed)
        assert near.fits(near.estimate(spec())) is False
        assert too_large(near, spec()) == []

    def test_nor_where_the_memory_is_not_known(self):
        assert too_large(question(0), spec()) == []

    def test_nor_where_a_larger_gpu_may_come(self):
        several = Question(question(24).outline, [Device("a", 24 * GIB, 24 * GIB), Device("b", 80 * GIB, 80 * GIB)])
        assert several.fits(several.estimate(spec())) is False
        assert too_large(several, spec()) == []

    def test_an_automatic_micro_size_is_taken_as_small_as_it_must_be(self):
        found = question(24).estimate(spec(strategy="fsdp", batch={"size": 64, "micro_size": "auto"}))
        assert 1 <= found.micro_size < 16
        assert question(24).fits(found)

    def test_where_none_fits_the_micro_size_that_needs_least_counts(self):
        automatic_size = {"size": 4, "micro_size": "auto"}
        whole = question(80).estimate(spec(gpus=2, batch={"size": 4, "micro_size": 2}))
        assert question(4).estimate(spec(gpus=2, batch=automatic_size)).peak == whole.peak

    def test_state_alone_can_be_too_large(self):
        outline = question(1).outline
        blind = Question(type(outline)(outline.parameters, outline.blocks), [Device("x", 8 * GIB, 8 * GIB)])
        estimate = blind.estimate(spec(strategy="single", gpus=1))
        assert estimate.memory is None
        assert needs(blind, estimate).endswith("of 8 GiB per GPU, without activations")
        assert too_large(blind, spec(strategy="single", gpus=1))


class TestWithoutGpus:
    def question(self, gib, ranks=1):
        return Question(question(0).outline, [share_of_machine(int(gib * GIB), ranks)], cpu=True)

    def test_the_ranks_share_the_machine(self):
        asked = spec(gpus=2)
        assert self.question(64).fits(self.question(64).estimate(asked))
        halves = self.question(64, ranks=4)
        assert halves.fits(halves.estimate(asked)) is False
        told = needs(halves, halves.estimate(asked))
        assert told.startswith("needs about 28.4 GiB of 16 GiB per rank (this machine's memory): optimizer 9.51, ")

    def test_a_small_machine_has_room_for_small_models(self):
        tiny = builtin.outline_of(spec_of({**LARGE, "layers": 1, "width": 64, "vocab": 256}).model)
        small = Question(tiny, [share_of_machine(4 * GIB, 4)], cpu=True)
        assert small.fits(small.estimate(spec_of({**LARGE, "layers": 1, "width": 64, "vocab": 256})))

    def test_only_state_that_is_more_than_the_machine_is_refused(self):
        state = self.question(64).estimate(spec()).least / GIB
        assert too_large(self.question(state + 0.1), spec()) == []
        problem = too_large(self.question(state - 0.1), spec())[0]
        assert problem.message.endswith("strategy fsdp: 6.96 GiB would fit")

    def test_more_ranks_are_no_way_out(self):
        problem = too_large(self.question(0.1), spec())[0]
        assert problem.message.endswith("no change of strategy or checkpointing would fit")

    def test_thousands_are_told_in_the_next_unit(self):
        asked = spec_of({**LARGE, "layers": 96, "width": 12288, "heads": 96}, gpus=2, strategy="ddp")
        huge = Question(builtin.outline_of(asked.model), [share_of_machine(23 * GIB, 2)], cpu=True)
        assert " TiB of 11.5 GiB per rank" in needs(huge, huge.estimate(asked))


class TestProposals:
    def test_less_at_once_comes_first(self):
        found = proposals(question(80), spec(batch={"size": 128, "micro_size": 32}))
        assert found[0].set == {"batch.micro_size": 16}

    def test_lora_is_proposed_last_and_said_to_be_another_training(self):
        found = proposals(question(14), spec(gpus=1, strategy="single", batch={"size": 1, "micro_size": 1}))
        assert set(found[0].set) == {"lora_rank"}
        assert "another training" in found[0].message

    def test_each_is_told_once(self):
        found = proposals(question(40), spec(strategy="fsdp", batch={"size": 128, "micro_size": 32}), count=9)
        assert len({str(one.set) for one in found}) == len(found) > 2


class TestAutomatic:
    def test_ddp_where_it_fits(self):
        assert automatic(question(80), spec())[0] == "ddp"

    def test_the_least_sharding_that_fits(self):
        assert automatic(question(24), spec())[0] == "zero2"
        assert automatic(question(10), spec())[0] == "fsdp"

    def test_ddp_where_nothing_is_known_or_fits(self):
        assert automatic(question(0), spec())[0] == "ddp"
        assert automatic(question(2), spec())[0] == "ddp"


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
    def test_by_name(self, name, least, most):
        found = device_of(name, {"mine": 7.0})
        assert (round(found.least / GIB, 1), round(found.most / GIB, 1)) == (least, most)

    def test_an_unknown_one_is_unknown(self):
        assert device_of("gpu9000", {}) == Device("gpu9000")

    def test_those_of_the_partition(self):
        cluster = ClusterResource(
            backend="slurm",
            partitions=[
                PartitionResource(name="a", default=True, shapes=[NodeShape(nodes=1, gpus={"t4": 1})]),
                PartitionResource(name="b", shapes=[NodeShape(nodes=1, gpus={"l4": 1}), NodeShape(nodes=1)]),
            ],
        )
        types = [[gpu.type for gpu in devices(Resources(**asked), cluster, {})] for asked in ({}, {"partition": "a,b"})]
        assert types == [["t4"], ["l4", "t4"]]
        assert [gpu.type for gpu in devices(Resources(gpu_type="h100"), cluster, {})] == ["h100"]

    def test_the_setting(self):
        assert parse_gpu_memory("gtx1080=8, =24") == {"gtx1080": 8.0, "": 24.0}
        for bad in ("a100", "a100=", "a100=big", "a100=0"):
            with pytest.raises(ValueError, match="is not <type>=<GiB>"):
                parse_gpu_memory(bad)


def test_a_model_is_gone_through_once(monkeypatch):
    calls = []
    monkeypatch.setattr("service.planner.fit.adapt", lambda *given: calls.append(1) or adapt(*given))
    automatic(question(10), spec())
    assert len(calls) == 1
