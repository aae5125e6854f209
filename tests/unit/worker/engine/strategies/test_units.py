"""The sharding units, and the parameters on a rank."""

import pytest
from torch import nn

from trainyard.contract.spec.decoders import GptModel
from trainyard.contract.spec.sections import Fsdp
from worker.engine.strategies.units import ParameterFootprint, parameter_footprint, plan_units
from worker.tasks.gpt import Gpt
from worker.tasks.image_classification import Convnet
from worker.tasks.regression import mlp

NAIVE, LAYER = Fsdp(wrap="naive"), Fsdp(wrap="layer")


def size(least):
    return Fsdp(wrap="size", min_params=least)


def units(model, options):
    return [(unit.module, unit.size) for unit in plan_units(model, options)]


class TestMlp:
    """2-2-2-3 with biases: 21 parameters."""

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (NAIVE, [("", 21)]),
            (LAYER, [("0", 6), ("2", 6), ("4", 9), ("", 0)]),
            (size(7), [("4", 9), ("", 12)]),
            (size(6), [("0", 6), ("2", 6), ("4", 9), ("", 0)]),
            (size(22), [("", 21)]),
        ],
    )
    def test_units_of_the_small_network(self, options, expected):
        assert units(mlp((2, 2, 2, 3), "tanh"), options) == expected

    @pytest.mark.parametrize(
        ("options", "gathered"),
        [(NAIVE, 21), (LAYER, 9), (size(7), 21)],
    )
    def test_shards_of_two_ranks(self, options, gathered):
        model = mlp((2, 2, 2, 3), "tanh")
        planned = plan_units(model, options)
        footprints = [parameter_footprint(model, planned, rank=rank, shards=2) for rank in (0, 1)]
        assert footprints == [ParameterFootprint(12, 12 + gathered), ParameterFootprint(9, 9 + gathered)]

    @pytest.mark.parametrize("options", [NAIVE, LAYER, size(7)])
    def test_gathered_units_accumulate_until_the_backward(self, options):
        model = mlp((2, 2, 2, 3), "tanh")
        footprints = parameter_footprint(
            model, plan_units(model, options), rank=0, shards=2, reshard_after_forward=False
        )
        assert footprints == ParameterFootprint(12, 33)

    def test_rank_beyond_the_last_row_has_an_empty_shard(self):
        model = mlp((2, 2), "tanh")
        assert [parameter_footprint(model, plan_units(model, NAIVE), rank=r, shards=3).sharded for r in range(3)] == [
            3,
            3,
            0,
        ]


class TestTransformer:
    def gpt(self, *, tied=True):
        return Gpt(GptModel(layers=2, width=16, heads=2, context=8, vocab=257, tied=tied))

    def test_layers_of_a_transformer_are_its_blocks(self):
        assert units(self.gpt(), LAYER) == [("blocks.0", 3232), ("blocks.1", 3232), ("", 257 * 16 + 8 * 16 + 32)]

    @pytest.mark.parametrize("least", [1, 16, 700, 1050, 4000])
    def test_every_parameter_is_in_one_unit_and_embeddings_in_the_roots(self, least):
        model = self.gpt()
        planned = plan_units(model, size(least))
        assert sorted(name for unit in planned for name in unit.parameters) == sorted(dict(model.named_parameters()))
        assert {"embedding.weight", "positions.weight"} <= set(planned[-1].parameters)

    def test_inner_units_precede_outer_units(self):
        names = [name for name, _ in units(self.gpt(), size(1050))]
        assert names.index("blocks.0.feed_forward.0") < names.index("blocks.0") < names.index("")

    def test_untied_embedding_and_head_are_units(self):
        table, rest = 257 * 16, 8 * 16 + 32
        named = [("embedding", table), ("blocks.0", 3232), ("blocks.1", 3232), ("head", table), ("", rest)]
        assert units(self.gpt(tied=False), LAYER) == named

    def test_units_that_the_backward_needs_first_stay_gathered(self):
        planned = plan_units(self.gpt(tied=False), LAYER)
        assert [unit.module for unit in planned if unit.stays] == ["blocks.1", "head", ""]

    def test_peak_counts_the_units_that_stay(self):
        model = self.gpt(tied=False)
        footprint = parameter_footprint(model, plan_units(model, LAYER), rank=0, shards=2)
        assert footprint.peak - footprint.sharded == 3232 + 257 * 16 + 8 * 16 + 32

    def test_embeddings_of_a_model_that_may_read_them_stay_in_the_root(self):
        model = self.gpt(tied=False)
        model.calls_embeddings = False
        assert [name for name, _ in units(model, LAYER)] == ["blocks.0", "blocks.1", ""]

    def test_untied_head_may_be_a_unit(self):
        assert ("head", 257 * 16) in units(self.gpt(tied=False), size(3000))


class TestTiedModules:
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])
            self.layers[2].weight = self.layers[0].weight

    @pytest.mark.parametrize("options", [LAYER, size(5)])
    def test_tied_modules_stay_in_the_root_unit(self, options):
        assert units(self.Tied(), options) == [("layers.1", 20), ("", 24)]


class TestConvnet:
    def test_layers_of_a_convnet_are_its_module_lists(self):
        names = [name for name, _ in units(Convnet(4, 10, 0.0), LAYER)]
        assert names == ["features.0", "features.2", "features.5", "head.2", ""]
