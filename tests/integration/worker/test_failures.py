"""A failure names what failed first and on which rank, and no process survives it."""

import os
import signal
import time

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, launch, processes_of, wait_for
from trainyard.contract.wire.reports import DIVERGED


@pytest.fixture(scope="module")
def service():
    with FakeService() as fake:
        yield fake


class TestFirstFailingRank:
    @pytest.mark.heavy
    def test_an_exception_on_one_rank(self, tmp_path, service):
        run = Run(tmp_path / "job", service.url, {}, max_restarts=0)
        attempt = run.start(faults=[{"kind": "raise", "rank": 1, "step": 5}])
        wait_for(lambda: attempt.rank_error(1).exists(), "the error")
        failed_at = time.monotonic()
        run.wait(30)
        assert time.monotonic() - failed_at < 15
        record = finish_of(attempt, 1)
        assert record.reason == "error"
        assert (record.failure.rank, record.failure.type) == (1, "RuntimeError")
        assert record.failure.message == "planted at step 5"
        assert "planted at step" in record.failure.traceback
        assert record.step == 4
        assert processes_of(attempt) == []

    @pytest.mark.cpu_seconds(10)
    @pytest.mark.fault_scenario(18)
    def test_killed_rank_is_named_although_only_its_peer_wrote_a_record(self, tmp_path, service):
        run = Run(tmp_path / "job", service.url, {}, max_restarts=0)
        attempt = run.run(faults=[{"kind": "kill", "rank": 1, "step": 5}])
        record = finish_of(attempt, 1)
        assert record.reason == "error"
        assert (record.failure.rank, record.failure.type) == (1, "SIGKILL")
        assert "out-of-memory killer" in record.failure.hint

    @pytest.mark.slow
    def test_out_of_memory(self, tmp_path, service):
        overrides = {"gpus": 1, "strategy": "single"}
        run = Run(tmp_path / "job", service.url, overrides, max_restarts=1)
        attempt = run.run(faults=[{"kind": "memory", "step": 5}])
        record = finish_of(attempt, 2)
        assert (record.reason, record.restarts) == ("out_of_memory", 1)
        assert "micro_size" in record.failure.hint

    @pytest.mark.slow
    def test_full_disk_starts_no_ranks_again(self, tmp_path, service):
        run = Run(tmp_path / "job", service.url, {}, max_restarts=2)
        attempt = run.run(faults=[{"kind": "full_disk", "rank": 1, "step": 5}])
        record = finish_of(attempt, 1)
        assert (record.reason, record.restarts, record.failure.rank) == ("disk_full", 0, 1)
        assert "No space left on device" in record.failure.message


@pytest.mark.heavy
class TestNanLoss:
    def test_ends_the_run_without_a_restart(self, tmp_path, service):
        run = Run(tmp_path / "job", service.url, {"gpus": 1, "log.every_steps": 10}, max_restarts=2)
        attempt = run.run(faults=[{"kind": "nan", "step": 5}])
        record = finish_of(attempt, 1)
        assert (record.reason, record.restarts, record.step) == ("error", 0, 10)
        assert record.failure.type == DIVERGED
        assert record.failure.message == "the loss became NaN or infinite at step 5"
        assert "optimizer.lr" in record.failure.hint


@pytest.mark.cpu_seconds(10)
class TestKilledLauncher:
    def test_no_process_survives(self, tmp_path, service):
        run = Run(tmp_path / "job", service.url, {"epochs": 300})
        attempt = run.start(faults=[{"kind": "sleep", "seconds": 0.1}])
        wait_for(lambda: len(processes_of(attempt)) >= 4, "launch, torchrun and two ranks")
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        wait_for(lambda: processes_of(attempt) == [], "everything to be gone", 10)


class TestRejectedClaim:
    def test_no_file_is_changed(self, tmp_path):
        with FakeService() as service:
            service.refuse_claim = True
            run = Run(tmp_path / "job", service.url, {})
            attempt = run.run(seconds=20)
        assert sorted(path.name for path in attempt.root.iterdir()) == ["launch.json", "outer.log", "token"]
        assert len((attempt.root / "outer.log").read_text().splitlines()) == 1

    def test_an_attempt_that_is_not_current_does_not_train(self, tmp_path):
        run = Run(tmp_path / "job", "http://127.0.0.1:9", {})
        attempt = run.prepare()
        run.make_current(2)
        assert launch(attempt).wait(60) == 0
        assert not attempt.logs.exists()


@pytest.mark.heavy
class TestCheckpointFolder:
    @pytest.mark.fault_scenario(48)
    def test_one_that_cannot_be_created_costs_an_event(self, tmp_path, service):
        run = Run(
            tmp_path / "job", service.url, {"gpus": 1, "steps": 12, "epochs": None, "checkpoint": {"every_steps": 4}}
        )
        run.layout.checkpoints.mkdir(parents=True)
        run.layout.checkpoint(8).root.write_text("a file in place of the folder")
        attempt = run.run()
        assert finish_of(attempt, 1).reason == "completed"
        assert [checkpoint.step for checkpoint in run.layout.complete_checkpoints()] == [4, 12]
        (failed,) = service.events_of_type("checkpoint_failed")
        assert (failed["level"], failed["data"]) == ("error", {"step": 8})
        assert "File exists" in failed["message"]


@pytest.mark.heavy
class TestSupersededAttempt:
    def test_ranks_end_and_write_nothing_more(self, tmp_path, service):
        changes = {"epochs": 300, "checkpoint": {"every_steps": 1, "keep_last": 2}}
        run = Run(tmp_path / "job", service.url, changes)
        attempt = run.start(faults=[{"kind": "sleep", "seconds": 0.1}])
        wait_for(lambda: len(run.layout.complete_checkpoints()) == 2, "two checkpoints")
        run.make_current(2)
        reported = len(service.finishes)
        newest = run.layout.complete_checkpoints()[-1].step
        run.wait(30)
        assert not list(attempt.root.glob("finish-*"))
        assert len(service.finishes) == reported
        assert "another attempt of the job is the current one" in attempt.launch_log.read_text()
        assert processes_of(attempt) == []
        # One save may have passed its check just before.
        assert run.layout.complete_checkpoints()[-1].step <= newest + 1


@pytest.mark.heavy
class TestStalledRank:
    @pytest.mark.fault_scenario(51)
    def test_stalled_rank_is_named_and_all_stacks_are_logged(self, tmp_path, service):
        run = Run(tmp_path / "job", service.url, {"health.stall_timeout_minutes": 0.05}, max_restarts=2)
        attempt = run.start(faults=[{"kind": "sleep", "rank": 1, "step": 3, "seconds": 600}])
        wait_for(lambda: "step 2/" in attempt.rank_log(0).read_text() if attempt.rank_log(0).exists() else "", "step 2")
        stalled_at = time.monotonic()
        run.wait(40)
        assert time.monotonic() - stalled_at < 20
        record = finish_of(attempt, 1)
        assert (record.reason, record.step, record.restarts) == ("stalled", 2, 0)
        assert (record.failure.rank, record.failure.type) == (1, "Stalled")
        assert "rank 1 is behind, in step 3" in record.failure.message
        assert "sitecustomize.py" in record.failure.message
        assert "_inject" in record.failure.traceback
        for rank in (0, 1):
            assert "most recent call first" in attempt.rank_log(rank).read_text()
        assert processes_of(attempt) == []
