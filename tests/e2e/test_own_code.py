"""Presets with their own code, and the communication check, run with the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.live import attempt_of, run_of, wait_for_status, wait_for_step
from trainyard.client import Client, InvalidRequestError
from trainyard.contract.local_paths import admin_token_file
from trainyard.contract.spec.templates import code_folder, fill_template
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.e2e


@pytest.fixture
def trainyard(service: ServiceProcess, client: Client, tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs the command line in an empty folder and returns its output."""
    token = admin_token_file(service.state_dir).read_text().strip()
    env = {**os.environ, "TRAINYARD_URL": service.url, "TRAINYARD_TOKEN": token}

    def run(*arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "from trainyard.cli import main; main()", *arguments],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_custom_preset_trains_its_own_code(trainyard, client: Client) -> None:
    trainyard("submit", "custom_spirals", "--watch")
    job = next(client.jobs(name="custom-spirals"))
    assert job.spec["code"].startswith("sha256:")
    assert float(job.resource.metrics["eval/accuracy"] or 0) > 0.9
    assert job.last_checkpoint_step == 250


@pytest.mark.heavy
def test_the_script_preset_reports_its_loss(trainyard, client: Client) -> None:
    trainyard("submit", "script_line", "--watch")
    job = next(client.jobs(name="script-line"))
    assert job.progress is not None
    assert (job.progress.step, job.progress.total_steps) == (200, 200)
    assert float(job.resource.metrics["train/loss"] or 9) < 1e-3


@pytest.mark.slow
def test_comm_check_preset_writes_a_table(trainyard, client: Client, tmp_path: Path) -> None:
    trainyard("submit", "comm_check", "--watch")
    shown = trainyard("show", "comm-check")
    for promised in ("all_reduce_sum", "16 MiB", "GB/s", "slowest pair: 0-1"):
        assert promised in shown
    assert "comm_check.json" in trainyard("artifacts", "comm-check")
    trainyard("artifacts", "comm-check", "--all", "--to", str(tmp_path / "got"))
    assert json.loads((tmp_path / "got" / "comm_check.json").read_text())["world_size"] == 2


def test_spec_folder_is_uploaded_once_at_submission(trainyard, client, tmp_path, runs) -> None:
    (tmp_path / "mine.py").write_text("from trainyard.script import report\nreport(1, {'score': 42})\n")
    # Neither shadows a module of Trainyard or torch.
    (tmp_path / "worker.py").write_text("raise SystemExit('the wrong worker')\n")
    (tmp_path / "spec.yaml").write_text("{version: 1, name: mine, task: script, argv: [mine.py]}\n")
    trainyard("submit", "spec.yaml", "--watch")
    (tmp_path / "mine.py").write_text("raise SystemExit('too late')\n")
    job = next(client.jobs(name="mine"))
    assert (job.status, job.resource.metrics) == ("succeeded", {"train/score": 42})
    assert "42" in (attempt_of(run_of(runs, job.id), 1).work / "mine.py").read_text()


def test_a_custom_task_that_cannot_be_built_is_rejected_with_its_traceback(client: Client, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import json\njson.loads('{')\n")
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')\n")
    spec = {"task": "custom", "target": "broken:build", "steps": 5}
    done = wait_for_status(client, client.submit(spec, code=tmp_path).id, "failed", "succeeded")
    assert (done.status, done.status_reason) == ("failed", "rejected")
    assert "target `broken:build`: importing `broken` failed: JSONDecodeError" in done.status_message
    assert done.error is not None
    assert "json.loads('{')" in done.error.traceback
    assert len(client.attempts(done.id)) == 1


@pytest.mark.slow
def test_a_cancelled_script_saves_first(client: Client, runs: Path) -> None:
    spec = fill_template("script_line", {"argv": ["train_line.py", "--steps", "1000000"]})
    job = client.submit(spec, code=code_folder())
    wait_for_step(client, job.id, 20)
    client.cancel(job.id)
    wait_for_status(client, job.id, "cancelled", seconds=20)
    assert (run_of(runs, job.id).checkpoints / "latest.pt").is_file()


def test_script_without_its_code_is_rejected(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match=r"`train_line\.py` is a file of an uploaded folder") as refused:
        client.submit(fill_template("script_line", {}))
    assert refused.value.param == "code"
