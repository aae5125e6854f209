"""Specs of small jobs that train."""

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

ENDLESS_FOUR_RANK_SPEC = {**SPEC, "steps": 1_000_000, "gpus": 4, "batch": {"size": 12}}
"""Uses all worker processes of the service."""

SLOW_CODE = r"""
import time

from spirals import Spirals

HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m\na needle here\nlast"


class Slow(Spirals):
    calls = 0

    def loss_sum(self, model, batch):
        if self.calls % 100 == 0:
            print(HOSTILE, flush=True)
        self.calls += 1
        time.sleep(0.05)
        return super().loss_sum(model, batch)


def build(spec):
    return Slow(spec)
"""
"""User code that trains slowly with little CPU, and logs HTML and escape sequences; it imports `spirals.py`.

Its curves must stay shorter than those that pages read downsampled, for as long as the tests take."""

RUNNING_JOB_NAME = "watched <b>closely</b>"
"""The name of the job that runs this code."""

ENDLESS_SPEC: dict[str, Any] = {
    "task": "custom",
    "target": "slow:build",
    "gpus": 1,
    "batch": {"size": 10},
    "optimizer": {"name": "sgd"},
    "steps": 1_000_000,
    "log": {"every_steps": 5},
    "checkpoint": {"every_steps": 500},
}
