"""What a real Slurm says of a job that is not submitted."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.slurm.specs import parity
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.wire.plans import AskResource
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slurm


def answer_to(client: Client, **changes: object) -> AskResource:
    asked = client.plan(parity(**changes), ask_scheduler=True).ask
    assert asked is not None

    def answered() -> AskResource | None:
        found = client.ask(str(asked.id))
        return found if found.state == "answered" else None

    return wait_until(answered, 60, "Slurm's answer")


def test_what_would_become_of_a_job_is_asked_and_nothing_is_queued(service: ServiceProcess, slurm: SlurmLab) -> None:
    with service.client() as client:
        found = answer_to(client)
        assert found.accepted is True, found.message
        assert found.estimated_start is not None, found.message
        assert abs(found.estimated_start - datetime.now(UTC)) < timedelta(minutes=2)
        assert "partition gpu" in found.message
        refused = answer_to(client, resources__partition="nowhere")
        assert refused.accepted is False, refused.message
        assert "resources.partition" in refused.message
    assert slurm.jobs() == []
