"""A user's program under torchrun: its reports, restarts, stop requests and end."""

import os
import resource
import signal
import tempfile
from pathlib import Path

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, processes_of, spooled, store_code, wait_for
from trainyard.contract.spec.user_code import code_archive
from worker.core.errors import read_errors
from worker.launcher.torchrun import files_prefix

PROGRAM = """
import os, sys, time
from trainyard.script import report, checkpoint_dir, should_stop

mode = sys.argv[1]
distributed = mode in ("run", "raise", "stall")
if distributed:  # the other modes do without it: importing torch takes most of the time of these tests
    import torch.distributed as dist
    dist.init_process_group("gloo")
rank, path = int(os.environ["RANK"]), checkpoint_dir() / "step"
step = int(path.read_text()) if path.exists() else 0
print("begins at", step, "in", os.getcwd(), flush=True)
while step < 40:
    step += 1
    report(step, {"loss": 1.0 / step, "eval/score": step}, total_steps=40)
    if step == 5 and mode == "raise" and rank == 1:
        raise ValueError("rank 1 has had enough")
    if step == 5 and mode == "die once" and rank == 0 and not os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        path.write_text("4")
        os._exit(3)
    if mode == "slow":
        time.sleep(0.1)
    if mode == "stall" and step == 5 and rank == 1:
        time.sleep(600)
    if should_stop():
        if rank == 0:
            path.write_text(str(step))
        break
if distributed:
    dist.barrier()
print("ends at", step, flush=True)
"""


@pytest.fixture
def script(tmp_path):
    # Names of modules that the launcher, the ranks and torch import, too: the program's folder must not shadow them.
    code = store_code(tmp_path, PROGRAM, worker="raise SystemExit('the wrong worker')\n")

    def made(service, mode, **changes):
        document = {"task": "script", "argv": ["train.py", mode], "code": code, "gpus": 2, **changes}
        return Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=1)

    return made


@pytest.mark.cpu_seconds(10)
def test_a_program_reports_and_completes(script, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with FakeService() as service:
        attempt = script(service, "run").run(environ={"TMPDIR": str(temporary)})
    assert finish_of(attempt, 1).reason == "completed", attempt.launch_log.read_text()[-2000:]
    assert finish_of(attempt, 1).step == 40
    assert list(spooled(attempt, 1)) == list(range(1, 41))
    assert len(service.series("train/loss")) == len(service.series("eval/score")) == 40
    for rank in (0, 1):
        log = attempt.rank_log(rank).read_text()
        assert f"begins at 0 in {attempt.work}" in log
        assert "ends at 40" in log
    assert b"ends at 40" in service.logs["a1", "1"]
    assert list(temporary.rglob("*")) == [temporary / f"trainyard-{os.getuid()}"], "an attempt leaves no files there"
    assert service.heartbeats


@pytest.mark.cpu_seconds(4)
def test_ranks_have_the_hard_limits_of_the_node(tmp_path):
    code = store_code(tmp_path, "import resource\nprint('files:', resource.getrlimit(resource.RLIMIT_NOFILE))\n")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = limits[1]
    with FakeService() as service:
        run = Run(
            tmp_path / "job",
            service.url,
            {"task": "script", "argv": ["train.py"], "code": code, "gpus": 1},
            template="script_line",
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        try:
            attempt = run.run()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert f"files: ({hard}, {hard})" in attempt.rank_log(0).read_text()


@pytest.mark.cpu_seconds(10)
def test_stop_request_saves_and_the_next_attempt_resumes(script):
    with FakeService() as service:
        run = script(service, "slow")
        first = run.start()
        wait_for(lambda: len(service.series("train/loss")) >= 5, "five steps")
        run.process.send_signal(signal.SIGTERM)
        run.wait()
        record = finish_of(first, 1)
        assert (record.reason, record.failure) == ("preempted", None)
        assert 5 <= record.step < 40
        second = run.run(2)
    assert finish_of(second, 11).reason == "completed"
    assert list(spooled(second, 11)) == list(range(record.step + 1, 41))
    events = {event["type"]: event for event in service.events.values()}
    assert events["training_resumed"]["data"]["step"] == record.step


@pytest.mark.heavy
def test_the_rank_that_raised_is_named_with_its_message(script):
    with FakeService() as service:
        run = script(service, "raise")
        run.max_restarts = 0
        attempt = run.run()
    (record,) = service.finishes
    assert record.reason == "error"
    assert (record.failure.rank, record.failure.type) == (1, "ValueError")
    assert record.failure.message == "rank 1 has had enough"
    assert 'raise ValueError("rank 1 has had enough")' in record.failure.traceback
    assert read_errors(attempt.errors, 1)
    assert not processes_of(attempt)


@pytest.mark.heavy
def test_failed_program_is_restarted_within_the_attempt(script):
    with FakeService() as service:
        attempt = script(service, "die once").run()
    record = finish_of(attempt, 2)
    assert (record.reason, record.step, record.restarts) == ("completed", 40, 1)
    assert list(spooled(attempt, 1)) == [1, 2, 3, 4, 5]
    assert list(spooled(attempt, 2)) == list(range(5, 41))
    assert len(service.series("train/loss")) == 5 + 36


@pytest.mark.cpu_seconds(10)
def test_missing_code_fails_the_job_before_any_rank_starts(script):
    with FakeService() as service:
        run = script(service, "run")
        code_archive(run.layout.root.parent, run.spec.code).unlink()
        attempt = run.run()
    (record,) = service.finishes
    assert record.reason == "rejected"
    assert "is missing" in record.failure.message
    assert not attempt.rank_log(0).exists()


@pytest.mark.heavy
def test_stalled_program_is_ended_after_the_stall_timeout(script):
    with FakeService() as service:
        attempt = script(service, "stall", **{"health.stall_timeout_minutes": 0.05}).run(seconds=60)
    record = finish_of(attempt, 1)
    assert (record.reason, record.failure.rank, record.failure.type) == ("stalled", 1, "Stalled")
    assert "rank 1 is behind, in step 5" in record.failure.message
    assert "train.py" in record.failure.message
    assert "train.py" in record.failure.traceback
    assert "most recent call first" in attempt.rank_log(0).read_text()
    assert not list(Path(tempfile.gettempdir()).glob(f"{files_prefix(attempt.root, 0)}*"))
    assert processes_of(attempt) == []
