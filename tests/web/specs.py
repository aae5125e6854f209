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

ENDLESS_ON_ALL = {**SPEC, "steps": 1_000_000, "gpus": 4, "batch": {"size": 12}}
"""Takes every worker process that the service has."""

SLOW = r"""
import time

from spirals import Spirals

HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m\na needle here\nlast"


class Slow(Spirals):
    calls = 0

    def loss_sum(self, model, batch):
        if self.calls % 100 == 0:
            print(HOSTILE, flush=True)
        self.calls += 1
        time.sleep(0.02)
        return super().loss_sum(model, batch)


def build(spec):
    return Slow(spec)
"""
"""Beside `spirals.py`: a task that leaves the processors to others, and whose log is not to be trusted."""

WATCHED = "watched <b>closely</b>"
"""The name of the job of this task."""

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
