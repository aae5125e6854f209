"""Whole jobs on a real Slurm, through the service's REST API."""

from typing import Any

import pytest

from tests.support.live import losses, run_of, wait_for_status
from tests.support.slurm_lab import SlurmLab
from trainyard.contract.templates import fill_template
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slurm


def parity(**changes: Any) -> dict[str, Any]:
    """Thirty quick steps on two nodes with two ranks each."""
    plain = {
        "gpus": 4,
        "resources.gpus_per_node": 2,
        "resources.partition": "gpu",
        "steps": 30,
        "epochs": None,
        "batch.size": 12,
        "checkpoint.every_steps": 10,
    }
    return fill_template("mlp_parity", plain | {key.replace("__", "."): value for key, value in changes.items()})


def test_two_nodes_train_and_report(service: ServiceProcess, slurm: SlurmLab) -> None:
    with service.client() as client:
        job = client.submit(parity())
        done = wait_for_status(client, job.id, "succeeded", "failed")
        assert done.status == "succeeded", done.status_message
        assert sorted(losses(client, job.id)) == list(range(1, 31))
        assert [c.step for c in client.checkpoints(job.id)][-1] == 30
        run = run_of(service.runs_dir, job.id)
        (attempt,) = client.attempts(job.id)
        filed = run.attempt(1).root / "submitit" / f"{attempt.scheduler_id}_submission.sh"
        assert client.script(job.id).script == filed.read_text(), "what is shown is what was submitted"
        assert {p.name for p in run.attempt(1).logs.glob("rank-*.log")} == {f"rank-{r}.log" for r in range(4)}
        for rank in range(4):
            assert "rank" in client.logs(job.id, rank=str(rank), tail=50).text
