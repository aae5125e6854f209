"""Lion, Adafactor and Muon make the updates of their references on one device."""

import copy

import pytest
import torch
from torch import nn

from trainyard.contract.spec.training_spec import parse_spec
from worker.core.errors import RefusedError
from worker.engine.optim import build_optimizer, optimizer_parameters
from worker.engine.optimizers.lion import CHUNK
from worker.engine.optimizers.muon import orthogonalised
from worker.engine.parameter_groups import hidden_matrices
from worker.tasks.image_classification import Convnet

STEPS = 20
RATE, DECAY = 0.01, 0.1


class Network(nn.Module):
    """A wide, a tall and an output layer, a norm and an embedding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(11, 6)
        self.up = nn.Linear(6, 20)
        self.norm = nn.LayerNorm(20)
        self.down = nn.Linear(20, 7, bias=False)
        self.head = nn.Linear(7, 3)

    def forward(self, tokens):
        return self.head(torch.tanh(self.down(self.norm(self.up(self.embedding(tokens))))))


def spec(name, precision="fp32", **options):
    return parse_spec(
        {
            "task": "regression",
            "steps": 1,
            "precision": precision,
            "model": {"name": "mlp"},
            "data": {"source": "builtin", "name": "parity"},
            "optimizer": {"name": name, "lr": RATE, "weight_decay": DECAY, **options},
        }
    )


def train(module, *optimizers):
    """Return the parameters after some steps on random examples."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        tokens = torch.randint(11, (16,), generator=generator)
        module.zero_grad()
        (module(tokens) - torch.randn(16, 3, generator=generator)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def trained(name, **options):
    module = Network()
    return train(module, build_optimizer(spec(name, **options), module))


class PlainLion(torch.optim.Optimizer):
    """The loop of the authors' program, github.com/google/automl/tree/master/lion."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            mean = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
            parameter.mul_(1 - RATE * DECAY)
            update = mean * 0.9 + parameter.grad * (1 - 0.9)
            parameter.add_(update.sign_(), alpha=-RATE)
            mean.mul_(0.99).add_(parameter.grad, alpha=1 - 0.99)


class TestLion:
    def test_updates_equal_those_of_the_authors(self):
        module = Network()
        assert torch.allclose(trained("lion"), train(module, PlainLion(module.parameters())), rtol=1e-6, atol=1e-7)

    def test_size_of_a_chunk_does_not_matter(self, monkeypatch):
        expected = trained("lion")
        assert CHUNK > 100
        monkeypatch.setattr("worker.engine.optimizers.lion.CHUNK", 100)
        assert torch.equal(trained("lion"), expected)


class TestAdafactor:
    def test_updates_equal_those_of_torch(self):
        module = Network()
        theirs = torch.optim.Adafactor(module.parameters(), lr=RATE, weight_decay=DECAY)
        assert torch.allclose(trained("adafactor"), train(module, theirs), rtol=1e-5, atol=1e-7)

    def test_filters_of_convolutions_equal_those_of_torch(self):
        ours, theirs = Convnet(4, 10, 0.0), Convnet(4, 10, 0.0)
        theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
        optimizers = (
            build_optimizer(spec("adafactor"), ours),
            torch.optim.Adafactor(theirs.parameters(), lr=RATE, weight_decay=DECAY),
        )
        images = torch.randn(8, 1, 8, 8)
        for _ in range(5):
            for module, optimizer in zip((ours, theirs), optimizers, strict=True):
                optimizer.zero_grad()
                module(images).square().mean().backward()
                optimizer.step()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)

    def test_state_of_a_matrix_is_a_row_and_a_column(self):
        module = Network()
        optimizer = build_optimizer(spec("adafactor"), module)
        train(module, optimizer)
        assert {key: value.shape for key, value in optimizer.state[module.up.weight].items()} == {
            "step": (),
            "row_var": (20, 1),
            "col_var": (1, 6),
        }


def plain_muon(module):
    """Return torch's Muon for the hidden matrices of the network, and AdamW for the rest."""
    hidden = [module.up.weight, module.down.weight]
    others = [parameter for parameter in module.parameters() if all(parameter is not one for one in hidden)]
    muon = torch.optim.Muon(
        hidden, lr=RATE, weight_decay=DECAY, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    return muon, torch.optim.AdamW(others, lr=RATE, weight_decay=DECAY, fused=True)


class TestMuon:
    def test_updates_in_half_precision_equal_those_of_torch(self):
        module = Network()
        assert torch.equal(trained("muon", precision="bf16"), train(module, *plain_muon(module)))

    def test_updates_in_fp32_equal_those_of_torch_without_rounding(self, monkeypatch):
        ours = trained("muon")
        # Releases of torch round in either of two ways.
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
        monkeypatch.setattr(torch, "bfloat16", torch.float32)
        module = Network()
        assert torch.equal(ours, train(module, *plain_muon(module)))

    def test_one_rate_gives_updates_as_large_as_those_of_adamw(self):
        weight = torch.randn(64, 256)
        update = 0.2 * 256**0.5 * orthogonalised(weight, torch.float32)
        assert 0.1 < update.square().mean().sqrt() < 0.4

    def test_hidden_matrices_are_neither_embeddings_norms_nor_outputs(self):
        module = Network()
        chosen = hidden_matrices(module)
        names = {name for name, parameter in module.named_parameters() if id(parameter) in chosen}
        assert names == {"up.weight", "down.weight"}

    def test_filters_of_convolutions_are_matrices(self):
        module = Convnet(4, 10, 0.0)
        chosen = hidden_matrices(module)
        names = {name for name, parameter in module.named_parameters() if id(parameter) in chosen}
        assert names == {"features.0.weight", "features.2.weight", "features.5.weight"}
        optimizer = build_optimizer(spec("muon"), module)
        before = module.features[2].weight.detach().clone()
        module(torch.randn(2, 1, 8, 8)).square().sum().backward()
        optimizer.step()
        assert not torch.equal(module.features[2].weight, before)

    def test_groups_keep_their_rates_and_decays(self):
        module = Network()
        optimizer = build_optimizer(spec("muon", no_decay=["biases"], lr_scale={"up.*": 4}), module)
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        made = {
            frozenset(names[id(p)] for p in group["params"]): (group["lr"], group["weight_decay"], "momentum" in group)
            for group in optimizer.param_groups
        }
        assert made == {
            frozenset({"down.weight"}): (RATE, DECAY, True),
            frozenset({"embedding.weight", "norm.weight", "norm.bias", "head.weight"}): (RATE, DECAY, False),
            frozenset({"head.bias"}): (RATE, 0.0, False),
            frozenset({"up.weight"}): (4 * RATE, DECAY, True),
            frozenset({"up.bias"}): (4 * RATE, 0.0, False),
        }
        assert optimizer.param_groups[0]["lr"] == RATE

    def test_loaded_state_serves_both_parts(self):
        module, again = Network(), Network()
        optimizer = build_optimizer(spec("muon"), module)
        train(module, optimizer)
        again.load_state_dict(module.state_dict())
        restored = build_optimizer(spec("muon"), again)
        restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert torch.equal(train(again, restored), train(module, optimizer))

    def test_model_without_a_hidden_matrix_is_refused(self):
        with pytest.raises(RefusedError, match=r"optimizer\.name: `muon` is for matrices of hidden layers"):
            build_optimizer(spec("muon"), nn.Sequential(nn.Linear(2, 3)))


@pytest.mark.parametrize("name", ["lion", "adafactor", "muon"])
class TestAll:
    def test_every_parameter_is_updated_once(self, name):
        module = Network()
        held = [id(parameter) for parameter in optimizer_parameters(build_optimizer(spec(name), module))]
        assert sorted(held) == sorted(id(parameter) for parameter in module.parameters())

    def test_parameter_without_a_gradient_keeps_its_value(self, name):
        module = Network()
        optimizer = build_optimizer(spec(name), module)
        before = module.head.weight.detach().clone()
        module.down(torch.randn(4, 20)).sum().backward()
        optimizer.step()
        assert torch.equal(module.head.weight, before)
        assert not optimizer.state.get(module.head.weight)
