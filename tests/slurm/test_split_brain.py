"""A node that loses contact to Slurm and to the service, but not to the shared disk: its job runs on there."""

from pathlib import Path

import pytest

from tests.slurm.conftest import slurm_service_behind_proxy
from tests.support.live import attempt_of, losses, wait_for_status
from tests.support.paced import SLOWLY, Pace, paced_run
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.contract.layout import RunLayout

pytestmark = pytest.mark.slurm
STEPS = 300


@pytest.mark.fault_scenario(46)
def test_old_attempt_is_fenced_off_and_none_of_its_points_is_lost(slurm: SlurmLab, pace: Pace, tmp_path: Path) -> None:
    with slurm_service_behind_proxy(tmp_path) as (service, proxy), service.client() as client:
        pace.set(SLOWLY)
        spec = paced_run(resources={"partition": "gpu"}, steps=STEPS, restart={"max_retries": 0})
        job = client.submit(spec, code=pace.code)
        wait_until(lambda: 10 in {saved.step for saved in client.checkpoints(job.id)}, 120, "its second checkpoint")
        proxy.cut()
        (first,) = client.attempts(job.id)
        node = first.nodes[0].split()[0]
        slurm.disconnect_node(node)
        try:
            wait_until(lambda: len(list(client.attempts(job.id))) == 2, 150, "a next attempt")
            run = RunLayout(service.runs_dir / job.id)
            fenced = "another attempt of the job is the current one"
            wait_until(lambda: fenced in attempt_of(run, 1).launch_log.read_text(), 60, "the first attempt to end")
            reached = [checkpoint.step for checkpoint in run.complete_checkpoints()]
            pace.set(0)
            done = wait_for_status(client, job.id, "succeeded", "failed", seconds=200)
        finally:
            slurm.start_node(node)
        assert done.status == "succeeded", done.status_message
        assert max(reached) > 10, "the first attempt trained on after it was lost"
        assert not list(attempt_of(run, 1).root.glob("finish-*"))
        first, second = sorted(client.attempts(job.id), key=lambda attempt: attempt.number)
        assert (first.exit_reason, second.resumed_from_step) == ("node_failure", max(reached))
        assert sorted(losses(client, job.id)) == list(range(1, STEPS + 1))
