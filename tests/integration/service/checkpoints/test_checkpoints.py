"""Checkpoints and exports are listed and downloaded; no path leads outside their folders."""

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.cpu_limit import at_most
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


class Bomb:
    """Whoever unpickles it fails the test."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("/tmp/trainyard-bomb"),)


@pytest.fixture
def job(world: World) -> str:
    return world.submit(checkpoint={"every_steps": 5, "keep_best": {"metric": "train/loss", "mode": "min"}})


@pytest.fixture
def folder(world: World, job: str) -> Path:
    """The files of the checkpoint of step 10, the best of two."""
    worker = world.start(job)
    worker.checkpoint(5, metrics={"train/loss": "NaN"})
    worker.checkpoint(10, metrics={"train/loss": 0.5})
    worker.checkpoint(15, metrics={"train/loss": 0.75})
    made = world.app_state.run_layout(job).checkpoint(10).root
    (made / "inner").mkdir(parents=True)
    (made / ".metadata").write_bytes(pickle.dumps(Bomb()))
    (made / "inner" / "0123").write_bytes(b"0123456789")
    (made / "manifest.json").write_text("{}")
    return made


def url_of(world: World, job: str, step: int = 10) -> str:
    listed = world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
    (id_,) = [one["id"] for one in listed if one["step"] == step]
    return f"/v1/jobs/{job}/checkpoints/{id_}"


@pytest.mark.databases("sqlite", "postgres")
def test_best_and_latest_checkpoints_are_marked(world: World, job: str, folder: Path) -> None:
    listed = world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
    assert [(one["step"], one["best"], one["latest"]) for one in listed] == [
        (5, False, False),
        (10, True, False),
        (15, False, True),
    ]
    assert world.client.get(url_of(world, job)).json() == listed[1]


def test_files_are_listed_including_hidden_ones(world: World, job: str, folder: Path) -> None:
    url = url_of(world, job) + "/files"
    listed = world.client.get(url, params={"limit": 2}).json()
    assert [(one["path"], one["object"]) for one in listed["data"]] == [(".metadata", "file"), ("inner/0123", "file")]
    rest = world.client.get(url, params={"after": listed["last_id"]}).json()
    assert [one["path"] for one in rest["data"]] == ["manifest.json"]


def test_case_13_pickle_is_sent_as_bytes_and_never_opened(world: World, job: str, folder: Path) -> None:
    answer = world.client.get(url_of(world, job) + "/files/.metadata")
    assert answer.content == pickle.dumps(Bomb())
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not Path("/tmp/trainyard-bomb").exists()


@pytest.mark.parametrize(
    ("header", "status", "content"),
    [
        ("bytes=2-4", 206, b"234"),
        ("bytes=" + ",".join("0-1" for _ in range(10_000)), 200, b"0123456789"),
    ],
)
def test_case_12_hostile_range_header_costs_little(
    world: World, job: str, folder: Path, header: str, status: int, content: bytes
) -> None:
    url = url_of(world, job) + "/files/inner/0123"
    with at_most(1.0):
        answer = world.client.get(url, headers={"Range": header})
        assert (answer.status_code, answer.content) == (status, content)


def test_range_outside_the_file_uses_the_error_envelope(world: World, job: str, folder: Path) -> None:
    answer = world.client.get(url_of(world, job) + "/files/inner/0123", headers={"Range": "bytes=10-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10")
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("Range", "range_not_satisfiable")
    assert "10 bytes" in error["message"]


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "%2e%2e%2fspec.json",
        "%252e%252e/spec.json",
        "..%5cx",
        "/etc/passwd",
        "%2fetc/passwd",
        "inner/../../x",
        "a%00b",
        "x" * 5000,
    ],
)
def test_case_10_malformed_path_is_rejected(world: World, job: str, folder: Path, path: str) -> None:
    answer = world.client.get(f"{url_of(world, job)}/files/{path}")
    assert answer.status_code in (404, 422)
    if path != "../x":  # the client itself resolves that one
        assert answer.json()["error"]["code"] in ("invalid_path", "route_not_found")


@pytest.mark.parametrize("name", ["..%2fx", "%2fetc%2fx", "..%5cx", "%2e%2e%2f", "CON", "x" * 300, "%252e"])
def test_case_10_malformed_checkpoint_id_is_rejected(world: World, job: str, folder: Path, name: str) -> None:
    before = sorted(world.settings.runs.rglob("*"))
    for method in ("GET", "DELETE"):
        answer = world.client.request(method, f"/v1/jobs/{job}/checkpoints/{name}")
        assert answer.status_code in (404, 422, 405)
    assert sorted(world.settings.runs.rglob("*")) == before


def test_case_11_link_is_neither_followed_nor_listed(world: World, job: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (folder / "planted").symlink_to(tmp_path / "secret")
    (folder / "away").symlink_to(tmp_path)
    url = url_of(world, job)
    assert "planted" not in world.client.get(f"{url}/files").text
    for path in ("planted", "away/secret"):
        assert world.client.get(f"{url}/files/{path}").status_code == 404
    assert b"secret" not in world.client.get(f"{url}/archive").content


def audited(world: World) -> list[tuple[Any, ...]]:
    """Since the world began, oldest first, without what changed something."""
    entries = world.client.get("/v1/audit?order=asc&limit=200").json()["data"]
    fields = ("action", "outcome", "status", "detail")
    return [tuple(one[key] for key in fields) for one in entries if one["action"].startswith("download")]


def test_case_11_requested_irregular_file_is_audited(world: World, job: str, folder: Path, tmp_path: Path) -> None:
    (folder / "away").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    url = url_of(world, job)
    for path in ("away/secret", "pipe", "not-there", "inner"):
        assert world.client.get(f"{url}/files/{path}").status_code == 404
    assert world.client.get(f"{url}/archive").status_code == 200
    artifacts = world.app_state.run_layout(job).artifacts
    artifacts.mkdir()
    (artifacts / "planted").symlink_to("/etc/passwd")
    assert world.client.get(f"/v1/jobs/{job}/artifacts/planted").status_code == 404
    refused, name = ("refused", 404), "download_checkpoint_file"
    assert audited(world) == [
        (name, *refused, {"kind": "link", "path": "away/secret"}),
        (name, *refused, {"kind": "special file", "path": "pipe"}),
        ("download_checkpoint", "done", None, {"left_out": ["away", "pipe"]}),
        ("download_artifact", *refused, {"kind": "link", "path": "planted"}),
    ]


def test_unauthenticated_request_is_not_audited_as_such(world: World, job: str, folder: Path) -> None:
    (folder / "away").symlink_to("/etc")
    assert world.new_client(None).get(url_of(world, job) + "/files/away").status_code == 401
    assert audited(world) == []


def test_archive_is_a_tar_of_known_length(world: World, job: str, folder: Path) -> None:
    (folder / ("long" * 40)).write_bytes(b"x" * 1000)
    answer = world.client.get(url_of(world, job) + "/archive")
    assert int(answer.headers["content-length"]) == len(answer.content)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        contents = {Path(name).name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    assert contents["0123"] == b"0123456789"
    assert contents["long" * 40] == b"x" * 1000
    assert len(contents) == 4


def test_archive_leaves_hidden_files_out_but_not_the_index(world: World, job: str, folder: Path) -> None:
    (folder / ".envrc").write_text("")
    answer = world.client.get(url_of(world, job) + "/archive")
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        assert {name.split("/", 1)[1] for name in tar.getnames()} == {".metadata", "inner/0123", "manifest.json"}
    assert audited(world)[-1][-1] == {"left_out": [".envrc"]}


def test_head_returns_the_length_of_file_and_archive(world: World, job: str, folder: Path) -> None:
    for path in ("/archive", "/files/inner/0123"):
        whole, head = world.client.get(url_of(world, job) + path), world.client.head(url_of(world, job) + path)
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["Content-Length"]) == len(whole.content)
        assert head.headers["Content-Type"] == whole.headers["Content-Type"]


def test_export_is_downloaded_like_a_checkpoint(world: World, job: str) -> None:
    url = f"/v1/jobs/{job}/export"
    assert world.client.get(f"{url}/files").json()["data"] == []
    assert world.client.get(f"{url}/archive").status_code == 404
    export = world.app_state.run_layout(job).export
    export.mkdir(parents=True)
    (export / "model.safetensors").write_bytes(b"weights")
    assert world.client.get(f"{url}/files/{quote('model.safetensors')}").content == b"weights"
    with tarfile.open(fileobj=io.BytesIO(world.client.get(f"{url}/archive").content)) as tar:
        assert tar.getnames() == [f"{job}-export/model.safetensors"]


def test_missing_checkpoints_and_files_are_404(world: World, job: str, folder: Path) -> None:
    unknown = f"/v1/jobs/{job}/checkpoints/ckpt_{'0' * 26}"
    for path in ("", "/files", "/archive", "/files/x"):
        answer = world.client.get(unknown + path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "checkpoint_not_found")
    assert world.client.get(url_of(world, job) + "/files/nope").json()["error"]["code"] == "file_not_found"
