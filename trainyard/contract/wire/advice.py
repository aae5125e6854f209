"""Advice that would make a running job faster or cheaper."""

from typing import Literal

from trainyard.contract.base import Resource


class Advice(Resource):
    """One observation about a running job, and the field that changes it."""

    kind: Literal["idle_gpus", "slow_data"]
    message: str
    """One sentence for the user."""
    field: str
    """Path of the spec's field to change."""
