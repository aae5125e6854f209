"""Activation checkpointing: which activations are stored, and which are recomputed."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.contract.spec.decoders import GptModel
from worker.engine.activations import checkpoint_activations
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


@pytest.mark.parametrize(("how", "computed_again"), [("full", RECOMPUTED), ("selective", 0)])
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
