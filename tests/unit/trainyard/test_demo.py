"""The demo: its output, and its cleanup after errors and interruptions."""

import subprocess
import sys

import httpx
import psutil
import pytest

from service.server import exclusive_lock
from tests.support.wait import wait_until
from tests.unit.trainyard.fake_service import TIME, error, job, page, status, streamed
from trainyard import demo

STREAM = "/v1/jobs/a1/stream"
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def accepted(service):
    preset = {"name": "digits_ddp", "description": "", "spec": {"task": "regression"}}
    service.on("GET", "/v1/templates/digits_ddp", preset).on("POST", "/v1/jobs", job("a1"))
    return service


class TestRun:
    def test_success_prints_curve_checkpoint_and_next_commands(self, accepted, capsys):
        series = {"key": "train/loss", "steps": [1, 2], "values": [2.0, 1.0], "times": [TIME, TIME]}
        checkpoint = {"id": "c", "job_id": "a1", "step": 2, "size_bytes": 1500, "digest": "d", "world_size": 2}
        checkpoint |= {"execution": 1, "path": "/runs/a1/checkpoints/step-0000000002", "created_at": TIME}
        accepted.on("GET", STREAM, streamed(status(1, "succeeded", "completed")))
        accepted.on("GET", "/v1/jobs/a1", job("a1", status="succeeded", metrics={"eval/accuracy": 0.98}))
        accepted.on("GET", "/v1/jobs/a1/metrics", {"job_id": "a1", "series": [series]})
        accepted.on("GET", "/v1/jobs/a1/checkpoints", page(checkpoint))
        assert demo.run(accepted.client()).status == "succeeded"
        shown = capsys.readouterr().out
        assert "train/loss: 1 at step 2" in shown
        assert "checkpoint of step 2, 1.46 KiB: /runs/a1/checkpoints/step-0000000002" in shown
        assert "make serve" in shown

    def test_failed_job_prints_its_error_and_log(self, accepted, capsys):
        failure = {"rank": 1, "type": "ValueError", "message": "bad"}
        accepted.on("GET", STREAM, streamed(status(1, "failed", "an error")))
        accepted.on("GET", "/v1/jobs/a1", job("a1", status="failed", status_message="an error", error=failure))
        headers = {"X-Trainyard-Offset": "0", "X-Trainyard-Next-Offset": "4"}
        accepted.on("GET", "/v1/jobs/a1/logs", httpx.Response(200, text="last", headers=headers))
        with pytest.raises(demo.DemoError, match="job a1 ended as failed"):
            demo.run(accepted.client())
        assert capsys.readouterr().err == "failed: an error\nfirst error on rank 1: ValueError: bad\nlast\n"

    @pytest.mark.parametrize("failure", [KeyboardInterrupt(), error(500, "boom")])
    def test_interrupt_cancels_the_job(self, accepted, failure):
        def answer(_):
            if isinstance(failure, BaseException):
                raise failure
            return failure

        accepted.on("GET", STREAM, answer).on("GET", "/v1/jobs/a1", job("a1", status="cancelled"))
        accepted.on("POST", "/v1/jobs/a1/cancel", job("a1", status="cancelling"))
        with pytest.raises((KeyboardInterrupt, demo.TrainyardError)):
            demo.run(accepted.client())
        assert [r.url.path for r in accepted.requests][-2:] == ["/v1/jobs/a1/cancel", "/v1/jobs/a1"]


class TestServiceProcess:
    def test_failed_service_start_prints_its_log(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(demo.sys, "executable", "/bin/false")
        monkeypatch.setattr(demo.signal, "signal", lambda *_: None)
        assert demo.main() == 1
        assert "the demo failed: the service ended with exit code 1" in capsys.readouterr().err

    def test_a_slow_start_is_reported_at_once_and_at_times(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(demo.ServiceProcess, "_command", lambda _: [sys.executable, "-c", SLEEP])
        for name, seconds in (("START_SECONDS", 2.0), ("_NEWS_SECONDS", 0.5)):
            monkeypatch.setattr(demo, name, seconds)
        service = demo.ServiceProcess(tmp_path)
        service.start()
        with pytest.raises(demo.DemoError, match="not ready after 2 seconds"):
            service.client()
        service.stop()
        first, *others = capsys.readouterr().out.splitlines()
        assert first == f"waiting for the service to be ready, up to 2 s; its log is {service.log}"
        assert len(others) >= 2
        assert all(line.startswith("still waiting after ") for line in others)

    def test_another_service_at_the_port_is_not_taken_for_this_one(self, tmp_path, monkeypatch):
        monkeypatch.setattr(demo.ServiceProcess, "_command", lambda _: [sys.executable, "-c", SLEEP])
        monkeypatch.setattr(demo, "START_SECONDS", 1.0)
        monkeypatch.setattr(demo.Client, "ready", lambda _: True)
        service = demo.ServiceProcess(tmp_path)
        service.start()
        with pytest.raises(demo.DemoError, match="not ready after 1 seconds"):
            service.client()
        service.stop()

    def test_settings_of_another_service_are_not_inherited(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TRAINYARD_DATABASE_URL", "postgresql://production")
        settings = {k for k in demo.ServiceProcess(tmp_path)._environment() if k.startswith("TRAINYARD_")}
        assert settings == {f"TRAINYARD_{name}" for name in ("HOST", "PORT", "STATE_DIR", "RUNS_DIR", "BACKEND")}

    def test_slurm_variables_are_inherited_only_for_slurm(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SLURM_CONF", "/a/lab/slurm.conf")
        assert "SLURM_CONF" not in demo.ServiceProcess(tmp_path)._environment()
        assert demo.ServiceProcess(tmp_path, backend="slurm")._environment()["SLURM_CONF"] == "/a/lab/slurm.conf"

    def test_service_ends_when_its_parent_is_killed(self, tmp_path):
        program = (
            "import sys, time; from pathlib import Path; from trainyard.demo import ServiceProcess\n"
            "service = ServiceProcess(Path(sys.argv[1])); service.start()\n"
            "print(service._process.pid, flush=True); time.sleep(60)"
        )
        owner = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        pid = int(owner.stdout.readline())
        assert psutil.pid_exists(pid)
        owner.kill()
        owner.wait()
        wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", 30, "its end")


class TestFolder:
    def test_demo_of_the_same_folder_is_refused_and_loses_nothing(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        folder = tmp_path / ".trainyard" / "demo"
        with demo._own(folder):
            (folder.mkdir(), (folder / "file").touch())
            assert demo.main() == 1
            assert (folder / "file").exists()
        assert capsys.readouterr().err == f"another demo uses {folder}; stop it first\n"

    def test_service_that_shows_the_last_demo_keeps_its_files(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        state = tmp_path / ".trainyard" / "demo" / "state"
        state.mkdir(parents=True)
        with exclusive_lock(state / "lock"):
            assert demo.main() == 1
            assert state.exists()
        assert capsys.readouterr().err == f"another service uses {state.parent}; stop it first\n"
