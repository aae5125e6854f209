"""Custom tasks that tests use as targets."""

from dataclasses import replace

import torch
from torch import nn

from trainyard.custom import CustomTask, Examples

BURST = 1e36
"""A factor with which the loss is finite and its gradient in half precision is infinite."""


class Plain(CustomTask):
    """A regression on random points, which are equal on all ranks only if the generators are seeded."""

    def __init__(self, spec):
        x = torch.randn(60, 2)
        self.examples = Examples((x, x.sum(1, keepdim=True)), train=48, held_out=12)

    def build_model(self):
        return nn.Linear(2, 1)

    def loss_sum(self, model, batch):
        x, y = batch
        return (model(x) - y).square().sum()


class DecodedExamples:
    """Examples that are computed as they are used, with noise on request."""

    train, held_out = 48, 0

    def __init__(self, noise):
        self.noise = noise

    def train_batch(self, indices, device):
        x = torch.from_numpy(indices).float()[:, None] / self.train * torch.tensor([1.0, -0.5])
        return (x + self.noise * torch.randn(len(indices), 2)).to(device), x.sum(1, keepdim=True).to(device)


class Decoded(Plain):
    def __init__(self, spec, noise=0.0):
        self.examples = DecodedExamples(noise)


class Noisy(Decoded):
    def __init__(self, spec):
        super().__init__(spec, noise=0.1)


class SmallBatches(Plain):
    """Fails on batches that are larger than a micro-batch."""

    def __init__(self, spec):
        super().__init__(spec)
        self.micro_size = spec.batch.micro_size

    def loss_sum(self, model, batch):
        assert len(batch[0]) <= self.micro_size
        return super().loss_sum(model, batch)


class TwoSets(Plain):
    """Has the held-out examples of `Plain` in two sets."""

    def __init__(self, spec):
        super().__init__(spec)
        self.examples = replace(self.examples, held_out_sets={"near": 5, "far": 7})


class Normalized(Plain):
    def build_model(self):
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


class BranchesOnValues(Plain):
    def build_model(self):
        layer = nn.Linear(2, 1)
        return layer if layer.weight.sum() > 0 else nn.Sequential(nn.Linear(2, 1))


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 1)
        self.b = nn.Linear(2, 1)

    def forward(self, x):
        return self.a(x), self.b(x)


class TwoOptimizers(CustomTask):
    shuffle = False

    def __init__(self, spec, burst=1.0):
        x = torch.randn(48, 2)
        factor = torch.ones(48, 1)
        factor[: spec.batch.size] = burst
        self.examples = Examples((x, x.sum(1, keepdim=True), factor), train=48, held_out=0)

    def build_model(self):
        return TwoHeads()

    def losses(self, model, batch):
        x, y, factor = batch
        a, b = model(x)
        return {"a": (a.float() - y).square().sum(), "b": ((b.float() - y).square() * factor).sum()}

    def optimizers(self, module, spec):
        return {
            "a": torch.optim.AdamW(module.a.parameters(), lr=spec.optimizer.lr),
            "b": torch.optim.SGD(module.b.parameters(), lr=0.1 * spec.optimizer.lr, momentum=0.9),
        }


def two_optimizers_with_a_burst(spec):
    return TwoOptimizers(spec, burst=BURST)


class IncompleteOptimizers(TwoOptimizers):
    def optimizers(self, module, spec):
        return {"a": torch.optim.SGD(module.a.parameters(), lr=0.1)}


def raises(spec):
    raise LookupError("the data went away")


def returns_nothing(spec):
    pass


class NoModel(CustomTask):
    def __init__(self, spec):
        self.examples = Examples((torch.zeros(4),), train=4, held_out=0)


class LossOfEach(Plain):
    def loss_sum(self, model, batch):
        x, y = batch
        return (model(x) - y).square()
