"""`trainyard.run`: a program is uploaded and submitted from Python."""

import json

import pytest

import trainyard
from tests.unit.trainyard.fake_service import TIME, FakeService, job, page
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


@pytest.mark.parametrize(
    ("paths", "listing"),
    [
        (["a.png", "b.csv"], "it has 2 artifacts (a.png, b.csv): trainyard artifacts 01JOBAAAA --all"),
        ([], "what its program wrote is in /runs/01JOBAAAA on the nodes"),
    ],
)
def test_download_of_a_program_names_what_it_left(service: FakeService, run, paths: list[str], listing: str) -> None:
    whole = job(status="succeeded", spec={"task": "script"})
    listed = [{"object": "artifact", "path": path, "size_bytes": 1, "modified_at": TIME} for path in paths]
    service.on("GET", "/v1/jobs", page(whole)).on("GET", "/v1/jobs/01JOBAAAA/export/files", page())
    service.on("GET", "/v1/jobs/01JOBAAAA/artifacts", page(*listed))
    done = run("download", "last")
    assert done.stderr == f"error: job 01JOBAAAA has no export: it trained no model of Trainyard's; {listing}\n"
    assert done.exit_code == 6


def test_run_takes_a_text(accepting: FakeService, monkeypatch) -> None:
    client = accepting.client()
    monkeypatch.setattr(client, "upload", lambda archive: archive.digest)
    trainyard.run("python train.py --name 'a b'", client=client)
    assert json.loads(accepting.requests[-1].content)["argv"] == ["train.py", "--name", "a b"]
    with pytest.raises(InvalidRequestError, match="cannot be split: No closing quotation"):
        trainyard.run("python 'train.py", client=client)
