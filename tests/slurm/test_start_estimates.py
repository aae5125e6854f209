"""Start estimates of a real Slurm."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.slurm.specs import parity
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.wire.plans import StartEstimateResource
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slurm


def answer_to(client: Client, **changes: object) -> StartEstimateResource:
    requested = client.plan(parity(**changes), estimate_start=True).start_estimate
    assert requested is not None

    def answered() -> StartEstimateResource | None:
        estimate = client.start_estimate(str(requested.id))
        return estimate if estimate.state == "answered" else None

    return wait_until(answered, 60, "Slurm's answer")


def test_a_start_estimate_queues_nothing(service: ServiceProcess, slurm: SlurmLab) -> None:
    before = set(slurm.jobs())
    with service.client() as client:
        answer = answer_to(client)
        assert answer.accepted is True, answer.message
        assert answer.estimated_start is not None, answer.message
        assert abs(answer.estimated_start - datetime.now(UTC)) < timedelta(minutes=2)
        assert "partition gpu" in answer.message
        refused = answer_to(client, resources__partition="nowhere")
        assert refused.accepted is False, refused.message
        assert "resources.partition" in refused.message
    assert set(slurm.jobs()) <= before
