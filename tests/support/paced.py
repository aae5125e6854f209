"""A run with a given duration of each step, so that it is still running when a test interrupts it."""

from pathlib import Path
from textwrap import dedent
from typing import Any

SLOWLY = 0.2
"""Seconds per step while a test acts on the run."""

PROGRAM = '''
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from trainyard.custom import CustomTask, Examples


class Paced(CustomTask):
    """A small network on fixed numbers; each step takes as long as a file says."""

    def __init__(self, spec):
        self.examples = Examples((torch.rand(480, 4), torch.rand(480, 3)), train=480, held_out=0)

    def build_model(self):
        return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))

    def loss_sum(self, model, batch):
        time.sleep(float(Path({pace!r}).read_text()))
        features, targets = batch
        return functional.mse_loss(model(features), targets, reduction="none").mean(1).sum()
'''


class Pace:
    """The duration of each step of the jobs that were submitted with this code."""

    def __init__(self, folder: Path) -> None:
        self.code, self._file = folder / "code", folder / "pace"
        self.code.mkdir()
        (self.code / "paced.py").write_text(dedent(PROGRAM).format(pace=str(self._file)))
        self.set(0)

    def set(self, seconds: float) -> None:
        part = self._file.with_suffix(".part")
        part.write_text(str(seconds))
        part.rename(self._file)


def paced_run(**changes: Any) -> dict[str, Any]:
    """Return a spec for two ranks, with a point at each step and a checkpoint every five steps."""
    return {
        "name": "paced",
        "task": "custom",
        "target": "paced:Paced",
        "strategy": "ddp",
        "gpus": 2,
        "batch": {"size": 12},
        "optimizer": {"name": "adamw", "lr": 0.01, "clip_norm": 1.0},
        "schedule": {"name": "cosine", "warmup_steps": 10},
        "checkpoint": {"every_steps": 5},
        "log": {"every_steps": 1},
        **changes,
    }
