"""Downloads that are interrupted, damaged or would write outside their folder."""

import asyncio
import hashlib
import json
from datetime import UTC, datetime

import httpx
import pytest

from tests.support.service_transport import service_transport
from trainyard.client import AsyncClient, Client, NotFoundError, ServerError, TargetExistsError
from trainyard.client.download import safe_name
from trainyard.contract.wire.files import CheckpointResource

TOKEN = "ty_00000000_x"
WEIGHTS = bytes(range(256)) * 40
MANIFEST = json.dumps({"files": {"a/weights": {"size": len(WEIGHTS), "sha256": hashlib.sha256(WEIGHTS).hexdigest()}}})
CHECKPOINT = CheckpointResource(
    id="ckpt_1",
    job_id="j1",
    step=5,
    size_bytes=len(WEIGHTS),
    digest=f"sha256:{hashlib.sha256(MANIFEST.encode()).hexdigest()}",
    world_size=1,
    execution=1,
    path="/x",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


class BrokenStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Some bytes, and then the connection is gone."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        yield self.data
        raise httpx.ReadError("connection reset")

    async def __aiter__(self):
        yield self.data
        raise httpx.ReadError("connection reset")


class Server:
    """The files of one checkpoint and one export; breaks off after so many bytes, as often as it is told."""

    def __init__(self, breaks=0, after=1000, weights=WEIGHTS, names=("a/weights", "manifest.json"), marks=None):
        self.marks = marks or {}
        self.breaks, self.after, self.weights, self.names = breaks, after, weights, names
        self.ranges = []
        self.etag = '"one"'

    def __call__(self, request):
        path = request.url.path
        if path.endswith("/checkpoints"):
            listed = {**CHECKPOINT.model_dump(mode="json"), **self.marks}
            return httpx.Response(200, json={"data": [listed], "has_more": False})
        if path.endswith("/files"):
            data = [self.file(name) for name in self.names]
            return httpx.Response(200, json={"data": data, "has_more": False})
        if path.endswith("manifest.json"):
            return httpx.Response(200, content=MANIFEST.encode())
        self.ranges.append(request.headers.get("range"))
        if request.headers.get("if-range", self.etag) != self.etag:
            return httpx.Response(200, content=self.weights, headers={"ETag": self.etag})
        start = int((self.ranges[-1] or "bytes=0-")[6:-1])
        rest = self.weights[start:]
        headers = {"ETag": self.etag} if self.etag else {}
        if not rest:
            return httpx.Response(416, json={"error": {"message": "lies outside the file"}})
        if self.breaks:
            self.breaks -= 1
            return httpx.Response(206 if start else 200, stream=BrokenStream(rest[: self.after]), headers=headers)
        return httpx.Response(206 if start else 200, content=rest, headers=headers)

    def file(self, name):
        size = len(MANIFEST) if name == "manifest.json" else len(self.weights)
        return {"path": name, "size_bytes": size, "modified_at": "2026-01-01T00:00:00Z"}

    def client(self):
        return Client("http://x", TOKEN, transport=service_transport(self), sleep=lambda _: None)


def test_broken_download_resumes_at_its_offset(tmp_path):
    server, progress = Server(breaks=2), []
    with server.client() as client:
        client.download("j1", tmp_path, checkpoint=CHECKPOINT, progress=lambda *update: progress.append(update))
    assert (tmp_path / "a" / "weights").read_bytes() == WEIGHTS
    assert server.ranges == [None, "bytes=1000-", "bytes=2000-"]
    assert ("a/weights", len(WEIGHTS), len(WEIGHTS)) in progress
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["manifest.json", "weights"]


@pytest.mark.parametrize("reference", ["best", "latest", 5, "5"])
def test_checkpoint_is_named_by_its_mark_or_step(tmp_path, reference):
    server = Server(marks={"best": True, "latest": True})
    with server.client() as client:
        client.download("j1", tmp_path, checkpoint=reference)
    assert (tmp_path / "a" / "weights").read_bytes() == WEIGHTS


def test_unknown_checkpoint_error_lists_what_may_be_named(tmp_path):
    message = "job j1 has no checkpoint 'newest'; use `best`, `latest` or a step: 5"
    with Server().client() as client, pytest.raises(NotFoundError, match=message):
        client.download("j1", tmp_path, checkpoint="newest")


def test_later_call_resumes_and_skips_complete_files(tmp_path):
    server = Server(breaks=100)
    with server.client() as client, pytest.raises(Exception, match="failed"):
        client.download("j1", tmp_path, checkpoint=CHECKPOINT)
    server.breaks = 0
    with server.client() as client:
        client.download("j1", tmp_path, checkpoint=CHECKPOINT)
        assert server.ranges[-1] == "bytes=4000-"
        request_count = len(server.ranges)
        client.download("j1", tmp_path, checkpoint=CHECKPOINT)
    assert len(server.ranges) == request_count
    assert (tmp_path / "a" / "weights").read_bytes() == WEIGHTS


def test_complete_partial_file_is_renamed(tmp_path):
    (tmp_path / ".weights.part").write_bytes(WEIGHTS)
    (tmp_path / ".weights.etag").write_text('"one"')
    server = Server(names=("weights",))
    with server.client() as client:
        client.download("j1", tmp_path)
    assert server.ranges == [f"bytes={len(WEIGHTS) - 1}-"]
    assert (tmp_path / "weights").read_bytes() == WEIGHTS


@pytest.mark.parametrize("has_etag", [True, False])
def test_parts_of_different_files_are_not_joined(tmp_path, has_etag):
    """The export was written anew between two calls, in the same length; a service without ETags cannot tell."""
    server = Server(breaks=100, names=("a/weights",))
    server.etag = server.etag if has_etag else ""
    with server.client() as client, pytest.raises(Exception, match="failed"):
        client.download("j1", tmp_path)
    server.breaks, server.weights = 0, WEIGHTS[::-1]
    server.etag = has_etag and '"two"'
    with server.client() as client:
        client.download("j1", tmp_path)
    assert (tmp_path / "a" / "weights").read_bytes() == WEIGHTS[::-1]
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["weights"]
    assert server.ranges[-1] == ("bytes=4000-" if has_etag else None)


def test_damaged_file_is_an_error_and_is_removed(tmp_path):
    server = Server(weights=b"x" + WEIGHTS[1:])
    with server.client() as client, pytest.raises(ServerError, match="a/weights is damaged"):
        client.download("j1", tmp_path, checkpoint=CHECKPOINT)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_manifest_of_another_checkpoint_is_rejected(tmp_path):
    other = CHECKPOINT.model_copy(update={"digest": "sha256:" + "0" * 64})
    with Server().client() as client, pytest.raises(ServerError, match=r"manifest\.json is damaged"):
        client.download("j1", tmp_path, checkpoint=other)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil"])
def test_file_names_cannot_leave_the_folder(tmp_path, name):
    with Server(names=(name,)).client() as client, pytest.raises(ServerError, match="leads out of the folder"):
        client.download("j1", tmp_path / "inner")
    assert not list(tmp_path.rglob("*evil*"))


def test_hidden_files_are_left_out_but_not_the_index_of_a_checkpoint(tmp_path):
    left_out, hidden = [], [".git/config", ".envrc", "a/.ssh/.metadata"]
    with Server(names=("a/weights", ".metadata", *hidden)).client() as client:
        client.download("j1", tmp_path, left_out=left_out)
    assert left_out == hidden
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".metadata", "a", "weights"]


@pytest.mark.parametrize("checkpoint", [None, CHECKPOINT])
@pytest.mark.parametrize("content", [b"mine", bytes(len(WEIGHTS))])
def test_other_content_is_replaced_only_if_requested(tmp_path, content, checkpoint):
    target = tmp_path / "a" / "weights"
    target.parent.mkdir()
    target.write_bytes(content)
    with Server(names=("a/weights",)).client() as client:
        with pytest.raises(TargetExistsError, match="exists already"):
            client.download("j1", tmp_path, checkpoint=checkpoint)
        assert target.read_bytes() == content
        for _ in range(2):
            client.download("j1", tmp_path, checkpoint=checkpoint, overwrite=True)
            assert target.read_bytes() == WEIGHTS
        client.download("j1", tmp_path, checkpoint=checkpoint)
    assert [path.name for path in target.parent.iterdir()] == ["weights"]


@pytest.mark.parametrize("id_", ["../x", "a/b", ".", "", "-rf", "a\n", "\x1b[2J"])
def test_ids_of_the_service_are_checked_before_they_name_a_file(id_):
    with pytest.raises(ServerError, match="cannot be a part of a file's name"):
        safe_name(id_)


def test_async_client_downloads_an_export(tmp_path):
    server = Server(breaks=1, names=("a/weights",))

    async def play():
        async def sleep(_):
            pass

        transport = service_transport(server)
        async with AsyncClient("http://x", TOKEN, transport=transport, sleep=sleep) as client:
            await client.download("j1", tmp_path)

    asyncio.run(play())
    assert (tmp_path / "a" / "weights").read_bytes() == WEIGHTS
