"""Training never waits for the service, and no report is lost or stored twice."""

from collections import Counter

import pytest

from tests.integration.worker.harness import (
    LAUNCHER_WITH_SHORT_WAITS,
    FakeService,
    Run,
    all_spooled_points,
    finish_of,
    launch,
    store_code,
    wait_for,
)
from tests.support.http_proxy import http_proxy
from trainyard.contract.wire.spool import parse_spool, read_acknowledged
from trainyard.demo import free_port

REPORT = """
from trainyard.script import report

for step in range(1, 4):
    report(step, {"value": 1.0})
"""
SINGLE = {"gpus": 1, "strategy": "single", "checkpoint.every_steps": 10}


class TestServiceOutage:
    @pytest.mark.slow
    def test_one_of_two_runs_trains_with_a_complete_spool(self, tmp_path):
        run = Run(tmp_path / "job", f"http://127.0.0.1:{free_port()}", SINGLE)
        attempt = run.prepare()
        launchers = [launch(attempt, program=LAUNCHER_WITH_SHORT_WAITS) for _ in range(2)]
        assert [process.wait(60) for process in launchers] == [0, 0]
        assert attempt.rank_log(0).read_text().count("rank 0, attempt 1") == 1
        assert finish_of(attempt, 1).reason == "completed"
        points = all_spooled_points(attempt, 1)
        assert {step for key, step, _ in points if key == "train/loss"} == set(range(1, 37))
        records = list(parse_spool(attempt.spool_file(1)))
        assert [record.seq for record in records] == list(range(len(records)))
        # A phase that takes long, as on a busy machine, has further reports of its progress alone.
        kinds = Counter(type(body).__name__ for record in records if getattr(body := record.body(), "points", True))
        assert kinds == {"EventsBatch": 2, "MetricsBatch": 36, "CheckpointReport": 4}
        assert read_acknowledged(attempt.spool_acknowledged(1)) == 0

    @pytest.mark.heavy
    @pytest.mark.fault_scenario(21)
    def test_service_returns_during_the_run_and_loses_answers(self, tmp_path):
        service = FakeService(free_port())
        run = Run(tmp_path / "job", service.url, SINGLE | {"epochs": 12})
        attempt = run.start(faults=[{"kind": "sleep", "seconds": 0.05}])
        wait_for(lambda: attempt.spool_file(1).exists() and attempt.spool_file(1).stat().st_size > 5000, "a few steps")
        service.lose_answers = 2
        with service:
            run.wait()
            assert service.points == all_spooled_points(attempt, 1)
            assert sorted(service.checkpoints) == [10 * n for n in range(1, 15)] + [144]
            assert read_acknowledged(attempt.spool_acknowledged(1)) == attempt.spool_file(1).stat().st_size
            assert [record.reason for record in service.finishes] == ["completed"]
            assert ("a1", "claim") in service.requests
            for stream in ("0", "launch"):
                path = attempt.launch_log if stream == "launch" else attempt.rank_log(0)
                assert path.read_bytes().startswith(bytes(service.logs[("a1", stream)]))
            assert bytes(service.logs[("a1", "0")]) == attempt.rank_log(0).read_bytes()

    @pytest.mark.slow
    def test_a_restart_within_the_attempt_sends_the_unsent_reports(self, tmp_path):
        service = FakeService(free_port())
        run = Run(tmp_path / "job", service.url, SINGLE)
        attempt = run.start(
            faults=[
                {"kind": "wait_for_checkpoint", "step": 13, "restart": 0, "path": run.manifest(10)},
                {"kind": "kill", "step": 13, "restart": 0},
                {"kind": "sleep", "seconds": 0.05, "restart": 1},
            ]
        )
        wait_for(lambda: attempt.spool_file(2).exists(), "the second execution")
        with service:
            run.wait()
            assert service.points == all_spooled_points(attempt, 1) | all_spooled_points(attempt, 2)


@pytest.mark.cpu_seconds(10)
@pytest.mark.parametrize(
    ("host", "no_proxy", "refusals", "uses_proxy"),
    [
        # An address of this machine that is none of loopback.
        ("0.0.0.0", "", float("inf"), True),
        ("yard.invalid", "", 0, True),
        ("0.0.0.0", "0.0.0.0", 0, False),
    ],
    ids=["past a proxy that refuses", "by the proxy alone", "without the proxy"],
)
def test_reports_arrive_with_a_proxy_in_the_environment(tmp_path, host, no_proxy, refusals, uses_proxy):
    document = {"task": "script", "argv": ["train.py"], "code": store_code(tmp_path, REPORT), "gpus": 1}
    with FakeService() as service, http_proxy(service.port, refusals=refusals) as proxy:
        run = Run(tmp_path / "job", f"http://{host}:{service.port}", document, template="script_line")
        attempt = run.run(environ={"HTTP_PROXY": proxy.url, "NO_PROXY": no_proxy})
        assert finish_of(attempt, 1).reason == "completed"
        assert {step for _, step, _ in service.points} == {1, 2, 3}
        assert bytes(service.logs[("a1", "0")]) == attempt.rank_log(0).read_bytes()
        assert [record.reason for record in service.finishes] == ["completed"]
        assert bool(proxy.requests) == uses_proxy
