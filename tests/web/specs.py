"""Specs of small jobs that really train."""

from typing import Any

SPEC: dict[str, Any] = {
    "task": "regression",
    "gpus": 1,
    "model": {"source": "builtin", "name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
    "steps": 400,
    "batch": {"size": 10},
    "log": {"every_steps": 5},
}

SLOW = """
import time

from spirals import Spirals


class Slow(Spirals):
    def loss_sum(self, model, batch):
        time.sleep(0.02)
        return super().loss_sum(model, batch)


def build(spec):
    return Slow(spec)
"""
"""Beside `spirals.py`: a task that leaves the processors to others."""

ENDLESS: dict[str, Any] = {
    "task": "custom",
    "target": "slow:build",
    "gpus": 1,
    "batch": {"size": 10},
    "optimizer": {"name": "sgd"},
    "steps": 1_000_000,
    "log": {"every_steps": 5},
    "checkpoint": {"every_steps": 500},
}
"""Of that task."""
