"""A custom task: tell two spirals apart. Data, model, loss; the rest is Trainyard's."""

import math

import torch
from torch import nn
from torch.nn import functional

from trainyard.custom import CustomTask, Examples


class Spirals(CustomTask):
    def __init__(self, spec, count=2000):
        turn = (0.2 + torch.rand(count)) * 1.5 * math.pi
        arm = torch.arange(count) % 2
        angle = turn + arm * math.pi
        points = torch.stack((angle.cos(), angle.sin()), dim=1) * turn[:, None] / 4
        points += 0.03 * torch.randn(count, 2)
        self.examples = Examples((points, arm), train=count - 400, held_out=400)

    def build_model(self):
        return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def loss_sum(self, model, batch):
        points, arm = batch
        return functional.cross_entropy(model(points).float(), arm, reduction="sum")

    def evaluation_sums(self, model, batch):
        points, arm = batch
        scores = model(points).float()
        right = (scores.argmax(1) == arm).sum()
        return {"eval/loss": functional.cross_entropy(scores, arm, reduction="sum"), "eval/accuracy": right}


def build(spec):
    return Spirals(spec)
