"""Traces of steps: those of the spec, and those requested of a running job."""

import gzip
import json
import os

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, wait_for


@pytest.fixture(scope="module")
def service():
    with FakeService() as fake:
        yield fake


def operations(path):
    with gzip.open(path) as file:
        return {event.get("name") for event in json.load(file)["traceEvents"]}


@pytest.mark.heavy
class TestTrace:
    def test_trace_covers_requested_steps_and_ranks(self, tmp_path):
        with FakeService() as service:
            overrides = {"profile": {"start_step": 5, "steps": 2, "ranks": [1]}, "epochs": 300}
            run = Run(tmp_path / "job", service.url, overrides)
            attempt = run.start(faults=[{"kind": "sleep", "seconds": 0.03}])
            (first,) = wait_for(lambda: service.events_of_type("profile_written"), "the trace of the spec")
            assert (first["data"]["first_step"], first["data"]["ranks"], first["data"]["request"]) == (5, [1], 0)
            service.profile = {"request": 17, "steps": 1, "ranks": [0, 1]}
            wait_for(lambda: len(service.events_of_type("profile_written")) == 2, "the trace asked for")
            service.stop = "cancel"
            run.wait(30)
        assert finish_of(attempt, 1).reason == "user_cancelled"
        second = service.events_of_type("profile_written")[1]
        assert (second["data"]["request"], second["data"]["ranks"], len(second["data"]["operations"])) == (
            17,
            [0, 1],
            10,
        )
        assert second["data"]["operations"][0] in second["message"]
        step = f"step-{second['data']['first_step']:010d}"
        names = [f"step-{5:010d}-rank-1", f"{step}-rank-0", f"{step}-rank-1"]
        files = sorted(path.name for path in run.layout.profiles.iterdir())
        assert files == sorted(f"{name}{end}" for name in names for end in (".json.gz", ".txt"))
        for name in names:
            assert "aten::addmm" in operations(run.layout.profiles / f"{name}.json.gz")
            assert "Self CPU" in (run.layout.profiles / f"{name}.txt").read_text()
        assert not attempt.profile_request.exists()


NSYS_SPEC = {"gpus": 1, "strategy": "single", "profile": {"start_step": 2, "steps": 1, "nsys": True}}


class TestNsys:
    def test_missing_nsys_is_rejected(self, tmp_path, service):
        run = Run(tmp_path / "job", service.url, NSYS_SPEC)
        attempt = run.run(seconds=30)
        record = finish_of(attempt, 1)
        assert (record.reason, record.failure.final) == ("rejected", True)
        assert "no program `nsys`" in record.failure.message

    @pytest.mark.slow
    def test_nsys_wraps_the_ranks(self, tmp_path, service):
        tools = tmp_path / "tools"
        tools.mkdir()
        script = '#!/bin/sh\necho "$@" > "$NSYS_SEEN"\nwhile [ "$1" != --output ]; do shift; done\nshift 2\n"$@"\n'
        (tools / "nsys").write_text(script)
        (tools / "nsys").chmod(0o755)
        environ = {"PATH": f"{tools}:{os.environ['PATH']}", "NSYS_SEEN": str(tmp_path / "seen")}
        run = Run(tmp_path / "job", service.url, NSYS_SPEC)
        attempt = run.run(environ=environ)
        assert finish_of(attempt, 1).reason == "completed"
        command_line = (tmp_path / "seen").read_text()
        assert command_line.startswith("profile --trace=cuda,nvtx,osrt")
        assert f"--output {run.layout.profiles}/nsys-rank-%q{{RANK}}" in command_line
