"""The spirals task with slow steps until a file `speed-up` exists, so that the run lasts as long as a test needs."""

import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from trainyard.custom import CustomTask, Examples

SPEED_UP = Path("/shared/speed-up")


class SlowSpirals(CustomTask):
    def __init__(self, spec):
        points = torch.randn(640, 2)
        self.examples = Examples((points, (points.prod(1) > 0).long()), train=640, held_out=0)

    def build_model(self):
        return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def loss_sum(self, model, batch):
        if not SPEED_UP.exists():
            time.sleep(0.4)
        points, side = batch
        return functional.cross_entropy(model(points).float(), side, reduction="sum")


def build(spec):
    return SlowSpirals(spec)
