"""Artifacts are listed and downloaded; no path leads outside their folder."""

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from service.checkpoints import safe_files
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def job(world: World) -> str:
    return world.submit()


@pytest.fixture
def folder(world: World, job: str) -> Path:
    made = world.app_state.run_layout(job).artifacts
    (made / "traces").mkdir(parents=True)
    (made / "table.json").write_bytes(b"0123456789")
    (made / "traces" / "rank 0.json").write_bytes(b"{}")
    return made


def test_files_are_listed_by_path_in_pages(world: World, job: str, folder: Path) -> None:
    url = f"/v1/jobs/{job}/artifacts"
    (folder / ".table.json.part").write_bytes(b"being written")
    first = world.client.get(url, params={"limit": 1}).json()
    assert ([a["path"] for a in first["data"]], first["has_more"]) == (["table.json"], True)
    assert (first["data"][0]["object"], first["data"][0]["size_bytes"]) == ("artifact", 10)
    rest = world.client.get(url, params={"after": first["last_id"]}).json()
    assert ([a["path"] for a in rest["data"]], rest["has_more"]) == (["traces/rank 0.json"], False)


def test_list_is_empty_without_artifacts_and_404_for_unknown_jobs(world: World, job: str) -> None:
    assert world.client.get(f"/v1/jobs/{job}/artifacts").json()["data"] == []
    assert world.client.get("/v1/jobs/job_nope/artifacts").status_code == 404


def test_whole_file_is_downloaded(world: World, job: str, folder: Path) -> None:
    answer = world.client.get(f"/v1/jobs/{job}/artifacts/traces/{quote('rank 0.json')}")
    assert (answer.status_code, answer.content) == (200, b"{}")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == 'attachment; filename="rank 0.json"'


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ('a".html', "attachment; filename*=UTF-8''a%22.html"),
        ("ü\r\nSet-Cookie: x", "attachment; filename*=UTF-8''%C3%BC%0D%0ASet-Cookie%3A%20x"),
        ("x.svg", 'attachment; filename="x.svg"'),
    ],
)
def test_no_file_is_shown_by_a_browser(world: World, job: str, folder: Path, name: str, sent: str) -> None:
    (folder / name).write_bytes(b"<script>")
    answer = world.client.get(f"/v1/jobs/{job}/artifacts/{quote(name)}")
    assert answer.headers["content-disposition"] == sent
    assert answer.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("header", "status", "content", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=0-", 200, b"0123456789", None),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=4-2", 416, None, "bytes */10"),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("bytes=x-", 200, b"0123456789", None),
        ("bytes=" + ",".join("0-1" for _ in range(10_000)), 200, b"0123456789", None),
        ("bytes=" + "9" * 5000 + "-", 200, b"0123456789", None),
    ],
)
def test_single_range_is_downloaded(
    world: World, job: str, folder: Path, header: str, status: int, content: bytes | None, content_range: str | None
) -> None:
    answer = world.client.get(f"/v1/jobs/{job}/artifacts/table.json", headers={"Range": header})
    assert answer.status_code == status
    assert content is None or answer.content == content
    assert answer.headers.get("content-range") == content_range


@pytest.mark.parametrize(
    "path",
    [
        "../spec.json",
        "%2e%2e/spec.json",
        "..%2fspec.json",
        "%252e%252e/spec.json",
        "traces/../../spec.json",
        "/etc/passwd",
        "%2fetc/passwd",
        "traces",
        "traces/",
        "nope",
        "..%5cspec.json",
        "x" * 5000,
    ],
)
def test_no_path_leads_out_of_the_folder(world: World, job: str, folder: Path, path: str) -> None:
    (folder.parent / "spec.json").write_text("secret")
    answer = world.client.get(f"/v1/jobs/{job}/artifacts/{path}")
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_path_with_a_nul_byte_is_rejected(world: World, job: str) -> None:
    answer = world.client.get(f"/v1/jobs/{job}/artifacts/a%00b")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_path")


def link_file(folder: Path) -> None:
    (folder / "planted").symlink_to("/etc/passwd")


def link_folder(folder: Path) -> None:
    (folder / "planted").symlink_to("/etc")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "planted")


@pytest.mark.parametrize("plant", [link_file, link_folder, pipe])
def test_only_regular_files_are_served(world: World, job: str, folder: Path, plant: Callable[[Path], None]) -> None:
    plant(folder)
    url = f"/v1/jobs/{job}/artifacts"
    assert "planted" not in world.client.get(url).text
    for path in ("planted", "planted/passwd"):
        assert world.client.get(f"{url}/{path}").status_code == 404


def test_a_linked_artifacts_folder_is_not_followed(world: World, job: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("x")
    run = world.app_state.run_layout(job)
    run.root.mkdir(parents=True, exist_ok=True)
    run.artifacts.symlink_to(tmp_path / "elsewhere")
    assert world.client.get(f"/v1/jobs/{job}/artifacts").json()["data"] == []
    assert world.client.get(f"/v1/jobs/{job}/artifacts/secret").status_code == 404


def test_head_has_the_headers_of_get_and_no_body(world: World, job: str, folder: Path) -> None:
    url = f"/v1/jobs/{job}/artifacts/table.json"
    whole, head = world.client.get(url), world.client.head(url, headers={"Range": "bytes=0-1"})
    assert (head.status_code, head.content) == (200, b"")
    for name in ("Content-Length", "ETag", "Last-Modified", "Accept-Ranges", "Content-Type"):
        assert head.headers[name] == whole.headers[name]
    assert world.client.head(url + "x").status_code == 404


def test_if_none_match_returns_304(world: World, job: str, folder: Path) -> None:
    url = f"/v1/jobs/{job}/artifacts/table.json"
    etag = world.client.get(url).headers["ETag"]
    for known in (etag, f'"other", W/{etag}', "*"):
        again = world.client.get(url, headers={"If-None-Match": known, "Range": "bytes=0-1"})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", etag)
    assert world.client.get(url, headers={"If-None-Match": '"other"'}).status_code == 200


def test_if_range_of_a_replaced_file_returns_the_whole_file(world: World, job: str, folder: Path) -> None:
    url, file = f"/v1/jobs/{job}/artifacts/table.json", folder / "table.json"
    content = file.read_bytes()
    etag = world.client.get(url).headers["ETag"]
    part = {"Range": "bytes=3-", "If-Range": etag}
    assert world.client.get(url, headers=part).content == content[3:]
    (folder / "new").write_bytes(content[::-1])
    os.utime(folder / "new", ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    (folder / "new").replace(file)
    whole = world.client.get(url, headers=part)
    assert (whole.status_code, whole.content) == (200, content[::-1])
    assert whole.headers["ETag"] != etag
    date = world.client.get(url, headers={"Range": "bytes=3-", "If-Range": whole.headers["Last-Modified"]})
    assert date.status_code == 200, "within a second there can be two files"


def test_names_with_nested_escapes_are_decoded_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(text: str) -> str:
        nonlocal calls
        calls += 1
        return unquote(text)

    monkeypatch.setattr(safe_files, "unquote", counted)
    for path in ("%" + "25" * 300, "%%32%35" * 100, "%%32%65%%32%65/spec.json"):
        assert not safe_files.is_plain_path(path)
    assert calls <= 6
    assert safe_files.is_plain_path("rate 100%25/a%20b")


def test_paths_that_lead_out_of_the_folder_are_not_audited(world: World, job: str, folder: Path) -> None:
    outside = "%2E%2E%2F" * 20 + "dev%2Fnull%2F"
    for path in (outside, outside + "x" * 50_000):
        assert world.client.get(f"/v1/jobs/{job}/artifacts/{path}").status_code == 404
    entries = world.client.get("/v1/audit").json()["data"]
    assert not [entry for entry in entries if entry["action"] == "download_artifact"]


@pytest.fixture(params=[2, 1], ids=["started", "prepared"])
def program(world: World, request: pytest.FixtureRequest) -> str:
    """A program whose second attempt has what the first wrote, and whose third has not started."""
    current = request.param
    program = {"version": 1, "task": "script", "argv": ["/opt/train.py"], "keep": ["mine/state.pt"]}
    job = str(world.client.post("/v1/jobs", json=program).json()["id"])
    run = world.app_state.run_layout(job)
    for number, names in (
        (1, ["out/old"]),
        (2, ["out/a.pt", "out/.hidden", "mine/state.pt", "mine/other", "train.py"]),
    ):
        layout = run.attempt(f"{number}-x")
        folder = layout.work if number == current else layout.code
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
        layout.root.mkdir(parents=True, exist_ok=True)
        layout.output.write_text("{}")
    run.attempt("3-x").root.mkdir()
    run.artifacts.mkdir()
    (run.artifacts / "table.json").write_text("{}")
    return job


def test_output_of_a_program_is_listed_and_downloaded(world: World, program: str) -> None:
    url = f"/v1/jobs/{program}/artifacts"
    listed = [file["path"] for file in world.client.get(url).json()["data"]]
    assert listed == ["output/mine/state.pt", "output/out/a.pt", "table.json"]
    assert [world.client.get(f"{url}/{path}").text for path in listed[:2]] == ["mine/state.pt", "out/a.pt"]


@pytest.mark.parametrize("path", ["train.py", "mine/other", "out/old", "out", "out/../train.py", "../token"])
def test_only_output_of_the_working_directory_is_downloaded(world: World, program: str, path: str) -> None:
    assert world.client.get(f"/v1/jobs/{program}/artifacts/{quote(f'output/{path}', safe='')}").status_code == 404
