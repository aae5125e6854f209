"""Commands that control jobs, download files and delete, against the service in this process."""

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from tests.support.world import World
from trainyard.cli.app import app
from trainyard.client import Client

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def run(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def client() -> Client:
        return Client("http://localhost", world.token, transport=httpx.MockTransport(answer))

    def answer(request: httpx.Request) -> httpx.Response:
        got = world.client.request(
            request.method,
            str(request.url),
            headers={**request.headers, "accept-encoding": "identity"},
            content=request.content,
        )
        return httpx.Response(got.status_code, headers=dict(got.headers), content=got.content)

    def invoke(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, list(arguments), obj=client)
        assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
        return done.stdout if code == 0 else done.stderr

    return invoke


def save_checkpoint(world: World, job: str, worker: Any, step: int) -> None:
    folder = world.app_state.run_layout(job).checkpoint(step).root
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"w" * step)
    digest = hashlib.sha256(b"w" * step).hexdigest()
    manifest = json.dumps({"files": {"weights": {"size": step, "sha256": digest}}})
    (folder / "manifest.json").write_text(manifest)
    manifest_digest = "sha256:" + hashlib.sha256(manifest.encode()).hexdigest()
    worker.checkpoint(step, digest=manifest_digest, metrics={"eval/loss": 1.0 / step})


def test_pause_resume_cancel_and_retry(world: World, run: Any) -> None:
    job = world.submit()
    assert "pause requested; status: queued" in run("pause", "last")
    world.tick()
    assert f"job {job}: paused: Paused before the start." in run("pause", job)
    assert json.loads(run("resume", job, "--json"))["desired"] == "run"
    run("cancel", job)
    world.tick()
    assert "already been cancelled" in run("pause", job, code=7)
    assert "Queued to run again from the beginning." in run("retry", job, "--from-scratch")


def test_media_are_listed_and_downloaded(world: World, run: Any, tmp_path: Path) -> None:
    job = world.submit()
    assert run("media", job) == ""
    folder = world.app_state.run_layout(job).artifacts
    time = "2026-01-01T00:00:00Z"
    items: list[dict[str, Any]] = [
        {"key": f"k{step}", "step": step, "type": "html", "path": f"pages/{step}.html", "caption": "a\x1b[31m"}
        for step in (1, 2)
    ]
    drawn = {"key": "w", "step": 3, "type": "histogram", "histogram": {"bins": [0, 1], "values": [1]}}
    worker = world.start(job)
    (folder / "pages").mkdir(parents=True)
    for step in (1, 2):
        (folder / "pages" / f"{step}.html").write_text(str(step))
    report = {"execution": 1, "items": [{**one, "time": time} for one in (*items, drawn)]}
    assert worker.post("media", report).status_code == 200
    rows = [line.split() for line in run("media", job).splitlines()]
    assert rows[0] == ["KEY", "STEP", "POSITION", "TYPE", "CAPTION", "FILE"]
    assert [" ".join(row[:4]) for row in rows[1:]] == ["k1 1 0 html", "k2 2 0 html", "w 3 0 histogram"]
    assert "\x1b" not in run("media", job)
    (only,) = map(json.loads, run("media", job, "--key", "k2", "--json").splitlines())
    assert (only["key"], only["path"]) == ("k2", "pages/2.html")
    assert run("media", job, "--key", "k2", "--to", "got").strip() == "got/pages/2.html"
    assert run("media", job, "--all").split() == [f"{job}-media/pages/{step}.html" for step in (1, 2)]
    assert (tmp_path / f"{job}-media" / "pages" / "1.html").read_text() == "1"


def test_list_download_fork_and_delete_checkpoints(world: World, run: Any, tmp_path: Path) -> None:
    job = world.submit()
    worker = world.start(job)
    save_checkpoint(world, job, worker, 5)
    save_checkpoint(world, job, worker, 10)
    assert "best latest" in run("checkpoints", job)
    assert run("download", job, "--checkpoint", "5").strip() == f"{job}-step-5"
    assert (tmp_path / f"{job}-step-5" / "weights").read_bytes() == b"wwwww"
    assert "available steps: 5, 10" in run("download", job, "--checkpoint", "7", code=6)
    assert "has no export" in run("download", job, "--export", code=7)
    assert "available steps: 5, 10" in run("fork", job, "--step", "7", code=6)
    forked = json.loads(run("fork", job, "--step", "5", "--set", "optimizer.lr=0.5", "--name", "other", "--json"))
    assert (forked["name"], forked["origin"]["step"], forked["origin"]["differs"]) == ("other", 5, ["optimizer.lr"])
    assert "continues it with other values of optimizer.lr" in run("fork", job, "--set", "optimizer.lr=0.5")
    assert "set `resume: weights`" in run("fork", job, "--set", "seed=3", code=2)
    assert "uses only its weights" in run("fork", job, "--set", "seed=3", "--set", "resume=weights")
    assert "cancel it first" in run("delete", job, "--yes", code=7)
    worker.end("completed", step=20)
    world.tick()
    (world.app_state.run_layout(job).export).mkdir()
    (world.app_state.run_layout(job).export / "model.safetensors").write_bytes(b"weights")
    assert json.loads(run("download", job, "--export", "--to", "out", "--json"))["path"] == "out"
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == b"weights"
    assert run("delete", job, "--checkpoints", "--yes") == f"deleted the checkpoints of job {job}\n"
    assert run("delete", job, "--yes") == f"deleted job {job}\n"
    world.run_maintenance()
    assert "2" in run("usage")


def test_list_commands_apply_filters(world: World, run: Any) -> None:
    job = world.submit(name="mine", metadata={"team": "nlp"})
    world.submit(name="other")
    for arguments in (
        ["--name", "mine"],
        ["--metadata", "team=nlp", "--by", "admin"],
        ["--name", "mine", "--since", "2025-12-31", "--until", "2026-01-02"],
    ):
        assert [json.loads(line)["id"] for line in run("list", *arguments, "--json").splitlines()] == [job]
    assert run("list", "--since", "2026-01-02", "--json") == ""


def test_projects_are_created_changed_and_deleted(world: World, run: Any) -> None:
    assert "zoo & birds: private, created" in run(
        "projects", "create", "zoo & birds", "--private", "--description", "x"
    )
    assert run("projects", "add-member", "zoo & birds", "anna") == "anna is member of the project zoo & birds\n"
    shown = run("projects", "set", "ZOO & birds", "--open", "--max-gpus", "4", "--max-queued", "none")
    assert shown.startswith("zoo & birds: open, created")
    world.submit(project="Zoo & Birds")
    text = run("projects", "show", "zoo & birds")
    assert "members: admin (manager), anna (member)" in text
    assert "GPUs in use: 0 (at most 4)" in text
    assert "queued jobs: 1 (no limit)" in text
    document = json.loads(run("projects", "show", "zoo & birds", "--json"))
    assert (document["usage"]["jobs"], document["max_gpus"]) == (1, 4)
    assert [json.loads(line)["name"] for line in run("projects", "list", "--json").splitlines()] == ["zoo & birds"]
    token = json.loads(run("tokens", "create", "ci", "--project", "zoo & birds", "--json"))
    assert token["project"] == "zoo & birds"
    assert "give a change" in run("projects", "set", "zoo & birds", code=2)
    assert "takes a number" in run("projects", "set", "zoo & birds", "--max-gpus", "x", code=2)
    assert "revoke it first" in run("projects", "delete", "zoo & birds", "--yes", code=7)
    run("tokens", "revoke", token["id"])
    assert "removed" in run("projects", "remove-member", "zoo & birds", "anna")
    assert "deleted" in run("projects", "delete", "zoo & birds", "--yes")
    assert "there is no project" in run("projects", "show", "zoo & birds", code=6)
    assert "there is no project" in run("projects", "show", "a/b", code=6)
