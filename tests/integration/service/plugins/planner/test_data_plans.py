"""The service reads data for its users: in a process that is bounded, and only where the job could read."""

import json
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.core.settings import Settings
from service.plugins.planner import data_plans
from service.plugins.planner.part import part_of
from tests.support.world import SPEC, World
from trainyard.contract.wire.data_accounts import DataRequest

pytestmark = pytest.mark.databases("sqlite")

LINE = json.dumps({"prompt": "a", "completion": "b"}) + "\n"


def spec_of(path: Path) -> dict[str, Any]:
    model = {"source": "builtin", "name": "gpt", "layers": 1, "width": 16, "heads": 1, "context": 32}
    return {"task": "causal_lm", "model": model, "data": {"source": "jsonl", "path": str(path)}, "steps": 1}


@pytest.fixture
def file(world: World, tmp_path: Path) -> Path:
    path = tmp_path / "data" / "a.jsonl"
    path.parent.mkdir()
    path.write_text(LINE * 5)
    world.settings.allowed_roots = (str(path.parent),)
    return path


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Let a program stand for the worker's interpreter; returns the file with its input."""

    def use(body: str) -> Path:
        received, script = tmp_path / "received.json", tmp_path / "python"
        script.write_text(
            f"#!{sys.executable}\nimport sys\nopen({str(received)!r}, 'w').write(sys.stdin.read())\n{body}\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(Settings, "python", str(script))
        return received

    return use


RESULT = """print('{"records": 3}'); print('{"result": {"data": [], "problem": "no examples"}}')"""


def test_bounds_and_rights_are_those_of_a_job(world: World, file: Path, program: Callable[[str], Path]) -> None:
    received = program(RESULT)
    answer = world.client.post("/v1/plans/data?records=7&seconds=3", json=spec_of(file))
    assert (answer.status_code, answer.json()["problem"]) == (200, "no examples"), answer.text
    request = DataRequest.model_validate_json(received.read_text())
    assert (request.records, request.seconds, request.memory_bytes) == (7, 3, 4 * 2**30)
    assert request.roots == world.settings.site.allowed_roots
    assert request.spec["data"]["path"] == str(file)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("""print('{"failure": "no torch", "hint": "Install it."}')""", "no torch. Install it."),
        ("print('nonsense')", "the process ended without a result"),
        ("", "the process ended without a result"),
        ("import os; os.kill(os.getpid(), 9)", "the process ended without a result"),
    ],
)
def test_failure_has_a_remedy(
    world: World, file: Path, program: Callable[[str], Path], body: str, message: str
) -> None:
    program(body)
    answer = world.client.post("/v1/plans/data", json=spec_of(file))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "data_not_read")
    assert message in answer.json()["error"]["message"]


def test_missing_interpreter_is_an_error(world: World, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "python", "/nonexistent/python")
    answer = world.client.post("/v1/plans/data", json=spec_of(file))
    assert answer.json()["error"]["code"] == "data_not_read"


def test_process_is_killed_after_its_time(
    world: World, file: Path, program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_plans, "_START_AND_END_SECONDS", 0.2)
    program("import time; time.sleep(60)")
    answer = world.client.post("/v1/plans/data?seconds=0.2", json=spec_of(file))
    assert "was not read within" in answer.json()["error"]["message"]


def test_data_without_texts_has_no_account(world: World, program: Callable[[str], Path]) -> None:
    received = program(RESULT)
    answer = world.client.post("/v1/plans/data", json=SPEC)
    assert (answer.status_code, answer.json()["data"]) == (200, [])
    assert not received.exists()


def test_spec_outside_of_the_roots_is_refused(world: World, file: Path, tmp_path: Path) -> None:
    answer = world.client.post("/v1/plans/data", json=spec_of(tmp_path / "secret.jsonl"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_spec")


def test_one_request_of_a_user_at_a_time(world: World, file: Path, program: Callable[[str], Path]) -> None:
    program(RESULT)
    planner, begun, end = part_of(world.app_state).data_planner, threading.Event(), threading.Event()
    planner.slots._wait_seconds = 0.0

    def occupy() -> None:
        with planner.slots.hold("admin"):
            begun.set()
            end.wait(30)

    thread = threading.Thread(target=occupy)
    thread.start()
    begun.wait(30)
    answer = world.client.post("/v1/plans/data", json=spec_of(file))
    end.set()
    thread.join()
    assert answer.status_code == 429
    assert "another request of yours" in answer.json()["error"]["message"]


ACCOUNT: dict[str, Any] = {"section": "data.path", "format": "text", "records": 1, "examples": 1}


class TestAccountsOfJobs:
    def report(self, world: World, *accounts: dict[str, Any]) -> tuple[str, Any]:
        """Report accounts of a job, and return its id and the last answer."""
        job_id = world.submit()
        world.tick()
        worker = world.worker(job_id)
        worker.claim()
        answer = None
        for number, account in enumerate(accounts):
            event = {"sequence": number + 1, "type": "data_account", "message": "x", "data": account}
            answer = worker.post("events", {"execution": 1, "events": [{**event, "time": "2026-01-01T00:00:00Z"}]})
        return job_id, answer

    def test_newest_account_of_each_source_is_returned(self, world: World) -> None:
        other = {**ACCOUNT, "section": "data.eval_path"}
        job_id, _ = self.report(world, ACCOUNT, other, {**ACCOUNT, "records": 9, "unknown": 1})
        data = world.client.get(f"/v1/jobs/{job_id}/data").json()["data"]
        assert [(account["section"], account["records"]) for account in data] == [
            ("data.path", 9),
            ("data.eval_path", 1),
        ]

    def test_account_that_readers_cannot_read_is_refused(self, world: World) -> None:
        _, answer = self.report(world, {"section": "data.path"})
        assert answer.status_code == 422
        assert "data.format" in answer.text

    def test_job_without_an_account_has_none(self, world: World) -> None:
        assert world.client.get(f"/v1/jobs/{world.submit()}/data").json()["data"] == []
