"""Unusual file names: what a list names can be downloaded, and nothing in a folder breaks its list or archive."""

import io
import os
import tarfile
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.support.live_world import served
from tests.support.world import World
from trainyard.client import Client

pytestmark = pytest.mark.databases("sqlite")

FETCHABLE = [
    "a\nb", "a\n", "\nb", "two\r\nlines", "tab\there", "\x1b[2J", "\x7f", ".hidden", ".trainyard/x", " lead", "trail ",
    "dots...", "...", "a%2Fb", "100%", "%0A", "%zz", "a?b", "a#b", "a;b", "a&b=c", "a+b", "ä", "e\u0301", "\u202etxt",
    "\U0001f600", "x" * 255, "'\"<b>", "inner\n/file\n",
]  # fmt: skip


@pytest.fixture
def job(world: World) -> str:
    return world.submit()


def roots(world: World, job: str) -> dict[str, Path]:
    """The folder behind each route that lists files."""
    worker = world.start(job)
    worker.checkpoint(10)
    (checkpoint,) = world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
    run = world.app_state.run_layout(job)
    prefix = f"/v1/jobs/{job}"
    return {
        f"{prefix}/artifacts": run.artifacts,
        f"{prefix}/export/files": run.export,
        f"{prefix}/checkpoints/{checkpoint['id']}/files": run.checkpoint(10).root,
    }


def write(root: Path, name: str, content: bytes = b"content") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)


def listed(world: World, url: str) -> list[str]:
    paths: list[str] = []
    while True:
        params = {"limit": "7", **({"after": paths[-1]} if paths else {})}
        answer = world.client.get(url, params=params)
        assert answer.status_code == 200, answer.text
        paths += [file["path"] for file in answer.json()["data"]]
        if not answer.json()["has_more"]:
            return paths


def test_every_listed_file_can_be_downloaded(world: World, job: str) -> None:
    """By a real server, since the test client decodes paths twice."""
    with served(world) as address, httpx.Client(base_url=address, headers=world.client.headers) as client:
        for url, root in roots(world, job).items():
            for number, name in enumerate(FETCHABLE):
                write(root, name, f"content {number}".encode())
            expected = FETCHABLE
            if url.endswith("artifacts"):
                expected = [name for name in FETCHABLE if not any(part.startswith(".") for part in name.split("/"))]
            assert listed(world, url) == sorted(expected)
            for name in expected:
                path, content = f"{url}/{quote(name)}", f"content {FETCHABLE.index(name)}".encode()
                answer = client.get(path)
                assert (answer.status_code, answer.content) == (200, content), repr(name)
                assert client.head(path).headers["Content-Length"] == str(len(content))


def test_the_client_downloads_all_names_that_are_not_hidden(world: World, job: str, tmp_path: Path) -> None:
    folders = roots(world, job)
    for root in folders.values():
        for name in FETCHABLE:
            write(root, name, name.encode())
    with served(world) as address, Client(address, world.token) as client:
        left_out: list[str] = []
        client.download(job, tmp_path / "export", left_out=left_out)
        for artifact in client.artifacts(job):
            client.download_artifact(job, artifact.path, tmp_path / "artifacts" / artifact.path)
            assert (tmp_path / "artifacts" / artifact.path).read_bytes().decode() == artifact.path
    assert left_out == sorted([".hidden", ".trainyard/x", "..."])
    for name in FETCHABLE:
        assert name in left_out or (tmp_path / "export" / name).read_bytes().decode() == name


def test_what_cannot_be_downloaded_is_not_listed(world: World, job: str) -> None:
    """Names that are not UTF-8, names that a client could decode into another path, and paths that are too long."""
    for url, root in roots(world, job).items():
        names = ["plain", "..%2fx", "%2e%2e", "/".join(["x" * 200] * 8), os.fsdecode(b"\xff\xfe"), "\udcff/inner"]
        for name in names:
            write(root, name)
        shown = listed(world, url)
        assert "plain" in shown
        for name in shown:
            assert world.client.get(f"{url}/{quote(name)}").status_code == 200, name
        assert not any("\udcff" in name for name in shown)


@pytest.mark.parametrize("time", [-(10**9), 10**11, 10**17])
def test_times_of_files_are_not_trusted(world: World, job: str, time: int) -> None:
    for url, root in roots(world, job).items():
        write(root, "plain")
        os.utime(root / "plain", (time, time))
        assert listed(world, url) == ["plain"]
        assert world.client.get(f"{url}/plain").status_code == 200


def test_deep_folders_do_not_break_a_list(world: World, job: str) -> None:
    for url, root in roots(world, job).items():
        write(root, "plain")
        home = os.getcwd()
        try:
            os.chdir(root)
            for _ in range(30):
                os.mkdir("d" * 200)
                os.chdir("d" * 200)
        finally:
            os.chdir(home)
        assert listed(world, url) == ["plain"]


def test_archives_contain_every_listed_file_that_is_not_hidden(world: World, job: str) -> None:
    for url, root in roots(world, job).items():
        if url.endswith("artifacts"):
            continue
        for name in (*FETCHABLE, "\udcff"):
            write(root, name)
        os.utime(root / "ä", (-(10**9), 10**11))
        answer = world.client.get(url.removesuffix("/files") + "/archive")
        assert answer.status_code == 200
        assert int(answer.headers["content-length"]) == len(answer.content)
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
            names = {name.split("/", 1)[1] for name in tar.getnames()}
        assert names == set(FETCHABLE) - {".hidden", ".trainyard/x", "..."}
