"""Specs for tests on the cluster."""

from typing import Any

from tests.support.paced import paced_run
from trainyard.contract.spec.templates import fill_template

_ON_TWO_NODES = {"resources.partition": "gpu", "epochs": None, "log.every_steps": 1}


def parity(**changes: Any) -> dict[str, Any]:
    """Return a spec of thirty short steps on two nodes with two ranks each."""
    plain = {"gpus": 4, "resources.gpus_per_node": 2, "steps": 30, "batch.size": 12, "checkpoint.every_steps": 10}
    return fill_template("mlp_parity", _ON_TWO_NODES | plain | _dotted(changes))


def long_run(**changes: Any) -> dict[str, Any]:
    """Return a spec of two ranks on two nodes that outlasts the test and writes checkpoints."""
    plain = {
        "resources.gpus_per_node": 1,
        "steps": 100_000,
        "model.channels": 24,
        "checkpoint.every_steps": 20,
        "evaluation.every_steps": None,
    }
    return fill_template("digits_ddp", _ON_TWO_NODES | plain | _dotted(changes))


def on_two_nodes(**changes: Any) -> dict[str, Any]:
    """Return the spec of a paced run with one rank on each of two nodes."""
    return paced_run(resources={"partition": "gpu", "gpus_per_node": 1}, **changes)


def _dotted(changes: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("__", "."): value for key, value in changes.items()}
