"""One job with three kinds of interruptions: its losses equal those of an undisturbed run."""

import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import slurm_service
from tests.support.container_images import make_root, podman_path, require_runtime
from tests.support.live import losses, processes_of, wait_for_status, wait_for_step
from tests.support.owners import OwnerService, open_folder, readable_python, sudo_rule, unix_users
from tests.support.paced import Pace, paced_run
from tests.support.packages import install
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.wire.jobs import AttemptResource

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 120
PACKAGES = Path("/usr/local/lib/python3.11/dist-packages")
"""Where Debian's Python in the image searches packages."""
OURS = Path(sysconfig.get_path("purelib"))


@dataclass(frozen=True)
class Site:
    """Who runs the job, and what its ranks run in."""

    client: Client
    pace: Pace
    environment: dict[str, Any]


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a root filesystem without torch, and with mount points for the packages of this interpreter."""
    require_runtime("charliecloud")
    root = make_root(tmp_path_factory.mktemp("image"))
    for mount_point in (PACKAGES, OURS):
        (root / mount_point.relative_to("/")).mkdir(parents=True, exist_ok=True)
    return root


@pytest.fixture
def plain(slurm: SlurmLab, tmp_path: Path) -> Iterator[Site]:
    with slurm_service(tmp_path) as service, service.client() as client:
        yield Site(client, Pace(tmp_path), {})


@pytest.fixture
def charliecloud(slurm: SlurmLab, tmp_path: Path, image: Path) -> Iterator[Site]:
    with in_containers("charliecloud", tmp_path, image) as site:
        yield site


@pytest.fixture
def podman(slurm: SlurmLab, tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    require_runtime("podman")
    monkeypatch.setenv("PATH", podman_path(tmp_path))
    with in_containers("podman", tmp_path, image) as site:
        yield site


@contextmanager
def in_containers(runtime: str, folder: Path, image: Path) -> Iterator[Site]:
    settings = {"container_runtime": runtime, "allowed_roots": f"{image},{OURS},{folder}"}
    container = {"image": str(image), "mounts": [f"{OURS}:{PACKAGES}"]}
    with slurm_service(folder, **settings) as service, service.client() as client:
        yield Site(client, Pace(folder), {"container": container})


@pytest.fixture
def owner(slurm: SlurmLab) -> Iterator[Site]:
    """Yield a site whose service is an ordinary account, and where the job is that of another one."""
    install("sudo", "sudo")
    with unix_users(2) as (ada, account), readable_python() as python, open_folder() as folder:
        service = OwnerService(folder, python, account, backend="slurm", slurm_poll_seconds="0.5", code_roles="user")
        with sudo_rule(account, [ada], python):
            service.start()
            try:
                with service.client() as admin, service.user_client(admin, ada) as client:
                    yield Site(client, Pace(folder), {})
            finally:
                service.stop()


@pytest.fixture(params=["plain", "charliecloud", "podman", "owner"])
def site(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def spec(site: Site) -> dict[str, Any]:
    """Return a spec of two nodes with two ranks each and a time limit of one minute."""
    where = {"partition": "gpu", "gpus_per_node": 2, "time_limit_minutes": 1}
    fixed = {"strategy": "fsdp", "gpus": 4, "steps": STEPS, "restart": {"max_retries": 0}, "resources": where}
    return paced_run(environment=site.environment, **fixed)


@pytest.mark.fault_scenario(55)
def test_job_survives_preemption_node_failure_and_time_limit(slurm: SlurmLab, site: Site) -> None:
    client, pace = site.client, site.pace
    reference = client.submit(spec(site), code=pace.code)
    assert wait_for_status(client, reference.id, "succeeded", "failed").status == "succeeded"
    expected = losses(client, reference.id)
    assert sorted(expected) == list(range(1, STEPS + 1))

    pace.set(1.0)
    job = client.submit(spec(site), code=pace.code)
    wait_for_step(client, job.id, 7)
    slurm.run("sbatch", "-p", "high", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    first_step = attempt_trains(client, job.id, 2)
    wait_for_step(client, job.id, first_step + 7)
    slurm.stop_node("node2")
    try:
        wait_until(lambda: len(list(client.attempts(job.id))) == 3, 150, "a third attempt")
    finally:
        slurm.start_node("node2")
    attempt_trains(client, job.id, 3)
    wait_until(lambda: len(list(client.attempts(job.id))) == 4, 120, "a fourth attempt, after the limit")
    pace.set(0)
    done = wait_for_status(client, job.id, "succeeded", "failed", "cancelled", "lost", seconds=200)
    assert done.status == "succeeded", done.status_message

    attempts = sorted(client.attempts(job.id), key=lambda attempt: attempt.number)
    reasons = [attempt.exit_reason for attempt in attempts]
    assert reasons == ["preempted", "node_failure", "time_limit", "completed"]
    resumed = [attempt.resumed_from_step or 0 for attempt in attempts]
    assert resumed == sorted(resumed)
    assert len(set(resumed)) == 4, f"each went on from a newer checkpoint: {resumed}"
    assert losses(client, job.id) == expected, "to the last digit"
    assert_each_step_once(client, job.id)
    for attempt in attempts:
        assert not processes_of(attempt.id)


def test_cancelled_job_leaves_no_process(slurm: SlurmLab, site: Site) -> None:
    site.pace.set(1.0)
    job = site.client.submit(spec(site), code=site.pace.code)
    wait_for_step(site.client, job.id, 2)
    site.client.cancel(job.id)
    done = wait_for_status(site.client, job.id, "cancelled", "failed", "succeeded", seconds=90)
    assert (done.status, done.status_reason) == ("cancelled", "user_cancelled")
    (attempt,) = site.client.attempts(job.id)
    wait_until(lambda: not processes_of(attempt.id), 20, "its processes to be gone")


def attempt_trains(client: Client, job_id: str, number: int) -> int:
    """Wait until the attempt has resumed; return the step from which it continues."""

    def resumed() -> AttemptResource | None:
        attempt = client.job(job_id).attempt
        return attempt if attempt and attempt.number == number and attempt.resumed_from_step else None

    attempt_resource = wait_until(resumed, 150, f"attempt {number} of {job_id}")
    assert attempt_resource is not None
    return attempt_resource.resumed_from_step or 0


def assert_each_step_once(client: Client, job_id: str) -> None:
    """Check the raw export, which is not downsampled."""
    rows = [line.split(",") for line in client.metrics_csv(job_id, ["train/loss"]).splitlines()]
    head, body = rows[0], rows[1:]
    steps = [int(row[head.index("step")]) for row in body]
    assert sorted(steps) == list(range(1, STEPS + 1))
