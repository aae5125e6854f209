"""`trainyard.run`: a program is uploaded and submitted from Python."""

import json

import pytest

import trainyard
from tests.unit.trainyard.fake_service import FakeService, job
from trainyard.client import InvalidRequestError


@pytest.fixture
def accepting(service: FakeService, tmp_path, monkeypatch) -> FakeService:
    """A service that accepts a job of the current folder."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return service.on("POST", "/v1/jobs", job())


def test_run_returns_the_handle_of_the_job(accepting: FakeService, monkeypatch) -> None:
    client = accepting.client()
    monkeypatch.setattr(client, "upload", lambda archive: archive.digest)
    handle = trainyard.run(["python", "train.py"], gpus=4, time="4h", env={"A": "b"}, signal="USR1@2m", client=client)
    assert handle.id == job()["id"]
    submitted = json.loads(accepting.requests[-1].content)
    assert submitted.pop("code").startswith("sha256:")
    assert submitted == {
        "version": 1,
        "name": "train",
        "task": "script",
        "argv": ["train.py"],
        "gpus": 4,
        "resources": {"time_limit_minutes": 240},
        "environment": {"variables": {"A": "b"}},
        "restart": {"signal": {"name": "SIGUSR1", "lead_minutes": 2.0}},
    }


def test_run_without_the_program_is_refused(accepting: FakeService) -> None:
    with pytest.raises(InvalidRequestError, match=r"there is no file 'absent\.py'"):
        trainyard.run(["python", "absent.py"], client=accepting.client())
    assert accepting.requests == []
