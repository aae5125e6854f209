"""Activation checkpointing: which activations are stored, and which are recomputed."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.contract.spec.decoders import GptModel
from worker.engine.activations import checkpoint_activations
from worker.engine.compilation import compile_blocks
from worker.engine.host_activations import HostActivations
from worker.tasks.gpt import Gpt


class Products(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += operation in {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
        return operation(*args, **(kwargs or {}))


def trained(how):
    """Run a forward and backward; return whether an activation is stored, the number of products, and gradients."""
    torch.manual_seed(0)
    model = Gpt(GptModel(layers=2, width=16, heads=2, context=8))
    if how != "none":
        checkpoint_activations(model, how)
    observed = []
    model.blocks[0].feed_forward[1].register_forward_hook(lambda *result: observed.append(weakref.ref(result[2])))
    with Products() as products:
        loss = model(torch.arange(8)[None]).square().sum()
        retained = observed[0]() is not None
        loss.backward()
    return retained, products.count, {name: parameter.grad for name, parameter in model.named_parameters()}


# Two blocks; the last product of each is not recomputed.
RECOMPUTED = 2 * 3


@pytest.mark.parametrize(("how", "computed_again"), [("full", RECOMPUTED), ("selective", 0), ("offload", RECOMPUTED)])
def test_full_recomputes_products_and_selective_stores_them(how, computed_again):
    retained, products, gradients = trained("none")
    stored_less, products_now, same = trained(how)
    assert (retained, stored_less) == (True, False)
    assert products_now - products == computed_again
    assert all(torch.equal(gradients[name], same[name]) for name in gradients)
    assert list(gradients) == list(same)


@pytest.mark.parametrize("how", ["full", "selective"])
def test_a_checkpointed_layer_is_still_compiled(how):
    model = Gpt(GptModel(layers=1, width=16, heads=2, context=8))
    checkpoint_activations(model, how)
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    model.blocks[0].compile(backend=backend)
    model(torch.arange(8)[None]).square().sum().backward()
    assert len(graphs) == 1


class RecordedHost(HostActivations):
    """Records the tensors on their way to the host and back."""

    def __init__(self, device):
        super().__init__(device)
        self.stored = []
        self.returned = []
        hosts.append(self)

    def _store(self, tensor):
        stored = super()._store(tensor)
        self.stored.append(stored)
        return stored

    def _start_return(self, stored):
        if stored.on_device is None:
            self.returned.append(self.stored.index(stored))
        super()._start_return(stored)


hosts: list[RecordedHost] = []


class TestOffload:
    @pytest.fixture
    def host(self, monkeypatch):
        """Return a function that runs a forward of three layers and returns the store and the loss."""
        monkeypatch.setattr("worker.engine.activations.HostActivations", RecordedHost)

        def run(**inputs):
            model = Gpt(GptModel(layers=3, width=16, heads=2, context=8))
            checkpoint_activations(model, "offload")
            alive = []
            model.blocks[1].register_forward_pre_hook(lambda _, args: alive.append(weakref.ref(args[0])))
            loss = model(torch.arange(8)[None], **inputs).square().sum()
            return hosts[-1], loss, alive[0]

        return run

    def test_only_inputs_of_layers_are_stored_and_the_originals_freed(self, host):
        store, _loss, second_input = host(positions=torch.arange(8)[None] % 4)
        assert [tuple(stored.values.shape) for stored in store.stored] == [(1, 8, 16)] * 3
        assert second_input() is None

    def test_each_copy_starts_when_the_input_after_it_is_used(self, host):
        store, loss, _ = host()
        uses = []
        store._load = lambda stored, load=store._load: (uses.append(list(store.returned)), load(stored))[1]
        loss.backward()
        assert store.returned == [2, 1, 0]
        assert uses == [[], [2, 1], [2, 1, 0]]
        assert all(stored.on_device is None for stored in store.stored)

    def test_a_forward_without_gradient_stores_nothing(self, host):
        with torch.no_grad():
            assert host()[0].stored == []

    def test_keyword_inputs_are_stored(self):
        class Doubled(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
                self.blocks[0].forward = lambda *, hidden, scale: hidden * scale

            def forward(self, x):
                return self.blocks[0](hidden=x, scale=torch.tensor(3.0))

        model = Doubled()
        host = RecordedHost(torch.device("cpu"))
        x = torch.ones(4, requires_grad=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("worker.engine.activations.HostActivations", lambda device: host)
            checkpoint_activations(model, "offload")
        model(x).sum().backward()
        assert len(host.stored) == 1
        assert x.grad.tolist() == [3.0] * 4

    def test_layers_are_compiled_inside_of_the_copies(self):
        model = Gpt(GptModel(layers=1, width=16, heads=2, context=8))
        with pytest.MonkeyPatch.context() as patch:
            graphs = []

            def compiled(forward):
                def counted(graph, inputs):
                    graphs.append(graph)
                    return graph.forward

                return original(forward, backend=counted)

            original = torch.compile
            patch.setattr("torch.compile", compiled)
            patch.setenv("CXX", "true")
            compile_blocks(model, only_forward=True)
        checkpoint_activations(model, "offload")
        model(torch.arange(8)[None]).square().sum().backward()
        assert len(graphs) == 1
