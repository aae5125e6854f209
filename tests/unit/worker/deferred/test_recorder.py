"""A recorded initialisation computes the same bits as a usual one, or is refused."""

import copy
import inspect

import pytest
import torch
from torch import nn

from trainyard.contract.spec.decoders import GptModel, LlamaModel
from worker.core.random_state import seed_generators
from worker.deferred.model import DeferredModel, Destination
from worker.deferred.recorder import record
from worker.deferred.recording import CannotDeferError
from worker.tasks.gpt import Gpt
from worker.tasks.image_classification import Convnet
from worker.tasks.llama import Llama
from worker.tasks.regression import mlp


def gpt(*, tied):
    return Gpt(GptModel(layers=2, width=16, heads=2, context=8, vocab=257, tied=tied))


def llama(*, tied):
    return Llama(LlamaModel(layers=2, width=16, heads=2, context=8, vocab=257, tied=tied))


def named(module):
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))


def defer(build, *, strict=True):
    seed_generators(3)
    module, recording = record(build, strict=strict)
    return DeferredModel(module, (recording,))


def filled(deferred):
    """Return the values of a deferred model by name."""
    tensors = deferred.tensors()
    values = {name: tensor for name, tensor in named(deferred.module).items() if name not in tensors}
    destinations = {}
    for name, tensor in tensors.items():
        values[name] = torch.empty(tensor.size, dtype=tensor.dtype)
        destinations.setdefault(tensor, []).append(Destination(values[name], slice(None)))
    deferred.fill(destinations)
    return values


class Computed(nn.Module):
    """Parameters and buffers that are computed from each other and from constants."""

    def __init__(self):
        super().__init__()
        self.scaled = nn.Parameter(torch.randn(4, 3) * 0.02)
        self.listed = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.inverse = nn.Parameter(1.0 / self.scaled.detach())
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)))
        self.register_buffer("frequencies", torch.arange(4.0)[:, None] * torch.ones(4), persistent=False)


CHECKS_FOR_META = "is_meta" in inspect.getsource(nn.init.orthogonal_)


def orthogonal():
    layer = nn.Linear(6, 4)
    nn.init.orthogonal_(layer.weight)
    nn.init.trunc_normal_(layer.bias)
    return layer


def seeds():
    layer = nn.Linear(3, 4)
    torch.manual_seed(7)
    return nn.Sequential(layer, nn.Linear(4, 4))


def copied():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


BUILDS = {
    "gpt": lambda: gpt(tied=False),
    "tied gpt": lambda: gpt(tied=True),
    "llama": lambda: llama(tied=False),
    "tied llama": lambda: llama(tied=True),
    "mlp": lambda: mlp((5, 7, 3), "tanh"),
    "convnet": lambda: Convnet(4, 10, 0.1),
    "computed tensors": Computed,
    "a seed inside": seeds,
    "copied layers": copied,
    "batch normalisation": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
    "a zeroed row": lambda: nn.Embedding(5, 4, padding_idx=2),
    "another dtype": lambda: nn.Linear(3, 4).bfloat16(),
}


class TestEqualBits:
    @pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
    def test_values_equal_those_of_a_usual_build(self, build):
        seed_generators(3)
        expected = named(build())
        after = torch.get_rng_state()
        values = filled(defer(build))
        assert values.keys() == expected.keys()
        assert all(torch.equal(values[name], expected[name]) for name in expected)
        assert torch.equal(torch.get_rng_state(), after)

    def test_a_tied_parameter_stays_one(self):
        deferred = defer(lambda: gpt(tied=True))
        assert len(set(deferred.tensors().values())) == len(list(deferred.module.parameters()))

    def test_deferred_tensors_have_no_memory(self):
        deferred = defer(lambda: gpt(tied=True))
        assert all(parameter.is_meta for parameter in deferred.module.parameters())

    def test_extension_draws_what_it_drew_before(self):
        def extend(module):
            seed_generators(5)
            module.added = nn.Linear(3, 3)

        seed_generators(3)
        whole = mlp((5, 7, 3), "tanh")
        extend(whole)
        deferred = defer(lambda: mlp((5, 7, 3), "tanh")).extended(extend)
        assert all(torch.equal(value, named(whole)[name]) for name, value in filled(deferred).items())


def branches_on_values():
    layer = nn.Linear(3, 4)
    return layer if layer.weight.sum() > 0 else nn.Linear(3, 4)


def forks_the_generator():
    with torch.random.fork_rng():
        return nn.Linear(3, 4)


def draws_elsewhere():
    layer = nn.Linear(3, 4)
    layer.scale = float(torch.tensor([0.0]).normal_())
    return layer


def has_a_generator():
    layer = nn.Linear(3, 4)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
    return layer


def holds_an_alias():
    layer = nn.Linear(3, 4)
    layer.alias = [layer.weight.data]
    return layer


def reads_the_device():
    layer = nn.Linear(3, 4)
    layer.device = layer.weight.device
    return layer


def catches_the_error():
    layer = nn.Linear(3, 4)
    try:
        layer.first = layer.weight[0, 0].item()
    except Exception:
        layer.first = 0.0
    return layer


def uses_numpy():
    layer = nn.Linear(3, 4)
    layer.norm = float((layer.weight.detach().numpy() ** 2).sum())
    return layer


def loads_weights():
    layer = nn.Linear(3, 4)
    layer.load_state_dict(copy.deepcopy(layer.state_dict()))
    return layer


REFUSED = {
    branches_on_values: "_local_scalar_dense",
    forks_the_generator: "`get_state` of torch's default generator",
    draws_elsewhere: "normal_.default on a tensor with data",
    has_a_generator: "with its own generator",
    holds_an_alias: "a tensor of shape \\[4, 3\\] that is no parameter and no buffer",
    reads_the_device: "`device` of a tensor",
    catches_the_error: "item|_local_scalar_dense",
    uses_numpy: "`numpy` of a tensor",
    loads_weights: "`is_meta` of a tensor",
}


class TestOrthogonal:
    @pytest.mark.skipif(CHECKS_FOR_META, reason="this torch reads `is_meta` of the tensor")
    def test_values_equal_those_of_a_usual_build(self):
        seed_generators(3)
        expected = named(orthogonal())
        values = filled(defer(orthogonal))
        assert all(torch.equal(values[name], expected[name]) for name in expected)

    @pytest.mark.skipif(not CHECKS_FOR_META, reason="this torch does not read `is_meta` of the tensor")
    def test_torch_that_reads_the_kind_of_a_tensor_is_refused(self):
        with pytest.raises(CannotDeferError, match="`is_meta` of a tensor"):
            defer(orthogonal)


class TestRefused:
    @pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
    def test_code_whose_result_could_differ_is_refused(self, build):
        with pytest.raises(CannotDeferError, match=REFUSED[build]):
            defer(build)

    def test_memory_that_nothing_initialises_is_refused(self):
        class Empty(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.empty(3, 4))

        with pytest.raises(CannotDeferError, match="`weight`, whose memory is not initialised"):
            defer(Empty).tensors()

    def test_a_change_of_earlier_tensors_is_refused(self):
        deferred = defer(lambda: nn.Linear(3, 4))
        with pytest.raises(CannotDeferError, match="of an earlier initialisation"):
            deferred.extended(lambda module: nn.init.zeros_(module.weight))

    def test_the_generator_works_after_a_refusal(self):
        with pytest.raises(CannotDeferError):
            defer(forks_the_generator)
        torch.manual_seed(3)
        assert torch.initial_seed() == 3
