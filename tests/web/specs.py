"""Specs of small jobs."""

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

HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m\na needle here\nlast\n"
"""HTML and escape sequences in a log."""

RUNNING_JOB_NAME = "watched <b>closely</b>"
"""The name of the job that trains without end."""

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
