"""A rehearsal of a restore under load: every point is there, nothing runs twice, and what is unknown is listed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live import attempt_of, losses, run_of, spooled_losses, wait_for_status, wait_for_step
from tests.support.paced import SLOWLY, Pace, paced_run
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEPS = 120


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path / "service", local_slots="4", tick_seconds="0.3")
    process.start()
    yield process
    process.stop()


def run_command(service: ServiceProcess, *arguments: str) -> str:
    """Run a command of the service; return its errors, which are empty if it succeeded."""
    command = [sys.executable, "-m", "service", *arguments]
    done = subprocess.run(command, env=service._environment(), capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else done.stderr


def restore(service: ServiceProcess, backup: Path) -> bool:
    """Restore the backup, unless the lease of the former service has not ended; return whether it is restored."""
    errors = run_command(service, "restore", str(backup))
    assert not errors or "a service uses the database" in errors, errors
    return not errors


def run_spec(name: str) -> dict[str, object]:
    return paced_run(name=name, steps=STEPS, gpus=1, strategy="auto")


def all_spooled(service: ServiceProcess, job_id: str) -> dict[int, str]:
    """Return the losses of all attempts; later ones repeat steps with equal values."""
    run, spooled = run_of(service.runs_dir, job_id), {}
    for number in range(1, len(list(run.attempts.iterdir())) + 1):
        launch = LaunchDocument.model_validate_json(attempt_of(run, number).launch.read_bytes())
        spooled.update(spooled_losses(run, number, launch.execution))
    return spooled


def pause_and_resume(client: Client, job_id: str) -> None:
    """Have the job continue in its second attempt."""
    client.pause(job_id)
    paused = wait_for_status(client, job_id, "paused")
    client.resume(job_id)
    wait_for_step(client, job_id, (paused.last_checkpoint_step or 0) + 8)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_restore_under_load_loses_no_point_and_repeats_nothing(
    service: ServiceProcess, tmp_path: Path, clean: bool
) -> None:
    paces = {}
    for name in ("continued", "ended", "unknown"):
        (tmp_path / name).mkdir()
        paces[name] = Pace(tmp_path / name)
    paces["continued"].set(SLOWLY)
    paces["ended"].set(SLOWLY)
    paces["unknown"].set(SLOWLY)
    backup = tmp_path / "backup"
    with service.client() as client:
        continued = client.submit(run_spec("continued"), code=paces["continued"].code).id
        ended = client.submit(run_spec("ended"), code=paces["ended"].code).id
        for job_id in (continued, ended):
            wait_for_step(client, job_id, 8)
        assert not run_command(service, "backup", str(backup))
        paces["ended"].set(0)
        wait_for_status(client, ended, "succeeded")
        pause_and_resume(client, continued)
        unknown = client.submit(run_spec("unknown"), code=paces["unknown"].code).id
        wait_for_step(client, unknown, 8)
        expected = client.job(continued).attempt
        assert expected is not None
        assert expected.number == 2
    if clean:
        service.stop()
    else:
        service.kill()
    wait_until(lambda: restore(service, backup), 30, "the lease of the former service to end")
    service.start()
    with service.client() as client:
        adopted = wait_for_status(client, continued, "running")
        assert adopted.attempt is not None
        wait_until(lambda: client.job(continued).attempt.id == expected.id, 20, "the adoption")  # type: ignore[union-attr]
        assert client.wait(ended, timeout=60).status == "succeeded"
        assert losses(client, ended).keys() == set(range(1, STEPS + 1))
        (orphan,) = wait_until(client.orphans, 20, "the orphan to be listed")
        assert (orphan.id, orphan.state, orphan.name) == (unknown, "running", "unknown")
        client.resolve_orphan(unknown, "adopt")
        wait_until(lambda: not client.orphans(), 20, "the orphan to be adopted")
        for pace in paces.values():
            pace.set(0)
        for job_id, attempts in ((continued, 2), (ended, 1), (unknown, 1)):
            assert wait_for_status(client, job_id, "succeeded", "failed").status == "succeeded"
            assert losses(client, job_id) == all_spooled(service, job_id)
            assert losses(client, job_id).keys() == set(range(1, STEPS + 1))
            assert len(client.attempts(job_id)) == attempts
            folders = list(run_of(service.runs_dir, job_id).attempts.iterdir())
            assert len(folders) == attempts, "nothing was executed twice"
