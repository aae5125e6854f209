"""Each attempt becomes exactly one Slurm job, even if requests or responses are lost."""

from pathlib import Path

import pytest

from tests.slurm.conftest import slurm_service
from tests.slurm.specs import parity
from tests.support.live import losses, wait_for_status
from tests.support.slurm_lab import SlurmLab
from tests.support.slurm_wrappers import install
from tests.support.wait import wait_until
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slurm

SOCKET_ERROR = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
BROKEN_ANSWERS = {
    "an error although it was accepted": f'$REAL "$@" > /dev/null; echo "{SOCKET_ERROR}" >&2; exit 1',
    "the submitter dies before it has read the answer": '$REAL "$@" > /dev/null; kill -9 $PPID',
    "an id and an error": f'$REAL "$@"; echo "{SOCKET_ERROR}" >&2; exit 1',
}


def ours(slurm: SlurmLab, tag: str) -> list[str]:
    return [number for number, name, _ in slurm.jobs() if name == tag]


@pytest.mark.fault_scenario(4, 7)
@pytest.mark.smoke
@pytest.mark.parametrize("fault", BROKEN_ANSWERS)
def test_lost_answer_creates_no_duplicate_job(
    fault: str, slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "bin", "sbatch", BROKEN_ANSWERS[fault], monkeypatch)
    before = {number for number, _, _ in slurm.jobs()}
    with slurm_service(tmp_path) as service, service.client() as client:
        job = client.submit(parity(gpus=1, strategy="single", resources__gpus_per_node=1))
        done = wait_for_status(client, job.id, "succeeded", "failed")
        assert done.status == "succeeded", done.status_message
        assert sorted(losses(client, job.id)) == list(range(1, 31))
        assert len(list(client.attempts(job.id))) == 1
    assert len({number for number, _, _ in slurm.jobs()} - before) == 1


@pytest.mark.fault_scenario(3)
@pytest.mark.smoke
def test_service_killed_after_sbatch_adopts_its_job(
    slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = tmp_path / "accepted"
    body = f'answer=$($REAL "$@"); touch {accepted}; sleep 3; echo "$answer"'
    install(tmp_path / "bin", "sbatch", body, monkeypatch)
    before = {number for number, _, _ in slurm.jobs()}
    service = ServiceProcess(tmp_path, backend="slurm", tick_seconds="0.3", accelerator="cpu")
    service.start()
    try:
        with service.client() as client:
            job = client.submit(parity())
            wait_until(accepted.exists, 30, "sbatch to have been answered")
        service.kill()
        service.start()
        with service.client() as client:
            done = wait_for_status(client, job.id, "succeeded", "failed")
            assert done.status == "succeeded", done.status_message
            (attempt,) = client.attempts(job.id)
            (only,) = {number for number, _, _ in slurm.jobs()} - before
            assert attempt.scheduler_id == only
    finally:
        service.stop()


def test_options_of_a_spec_reach_slurm_unchanged(slurm: SlurmLab, tmp_path: Path) -> None:
    comment = "run 7 of #42; (a & b) 100% <x>|y* ~^!? {z} [q] @u+v=w,:./-_"
    options = {"comment": comment, "exclusive": True, "licenses": "tokens:2", "nodelist": "node[1-2]", "nice": 5}
    with slurm_service(tmp_path) as service, service.client() as client:
        plan = client.plan(parity(resources__options=options))
        assert "#SBATCH --licenses=tokens:2" in (plan.script or "")
        job = client.submit(parity(resources__options=options))
        done = wait_for_status(client, job.id, "succeeded", "failed")
        assert done.status == "succeeded", done.status_message
        (attempt,) = client.attempts(job.id)
        shown = slurm.run("scontrol", "--oneliner", "show", "job", str(attempt.scheduler_id))
        for text in (f" Comment={comment} ", " Licenses=tokens:2 ", " OverSubscribe=NO ", " Nice=5 "):
            assert text in shown
        assert " ReqNodeList=node[1-2] " in shown
        refused = client.submit(parity(resources__options={"reservation": "nowhere"}))
        done = wait_for_status(client, refused.id, "failed", "succeeded", seconds=30)
        assert (done.status, done.status_reason) == ("failed", "rejected")
        assert "Requested reservation is invalid" in done.status_message
        assert "Change resources.options.reservation" in done.status_message


def test_a_rejection_has_slurms_message_and_a_suggested_fix(slurm: SlurmLab, tmp_path: Path) -> None:
    with slurm_service(tmp_path, slurm_preflight="false") as service, service.client() as client:
        job = client.submit(parity(resources__partition="nowhere"))
        done = wait_for_status(client, job.id, "failed", "succeeded", seconds=30)
        assert (done.status, done.status_reason) == ("failed", "rejected")
        assert "invalid partition specified: nowhere" in done.status_message
        assert "Change resources.partition" in done.status_message
