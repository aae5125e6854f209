"""Uploads of data files by the client, and what `trainyard files` prints."""

import httpx
import pytest

from tests.support.service_transport import service_transport
from tests.unit.trainyard.fake_service import TIME
from trainyard.client import Client
from trainyard.client.errors import InvalidRequestError

UPLOAD = {
    "object": "upload",
    "id": "upl_01kdvdna00yhj80arqj5k8gms6",
    "name": "bad.jsonl",
    "size_bytes": 5,
    "created_by": "alice",
    "created_at": "2026-01-01T12:00:00.000Z",
    "expires_at": "2026-01-02T12:00:00.000Z",
}
FILE = {
    "object": "data_file",
    "id": "file_01kdvdna00yhj80arqj5k8gms6",
    "name": "chats.jsonl",
    "size_bytes": 2048,
    "digest": f"sha256:{'ab' * 32}",
    "format": "chat",
    "examples": 3,
    "created_by": "alice",
    "created_at": TIME,
}


class Service:
    """Takes one upload, refuses its content after it was checked, and removes it, as the service does."""

    def __init__(self):
        self.completions = 0

    def __call__(self, request):
        path = request.url.path
        if path == "/v1/tokens/self":
            token = {
                "object": "token",
                "id": "tok_1",
                "name": "alice",
                "role": "user",
                "created_at": UPLOAD["created_at"],
            }
            return httpx.Response(200, json=token)
        if path.endswith("/complete"):
            return self._complete()
        if request.method == "GET" and path == "/v1/uploads":
            return httpx.Response(200, json={"object": "list", "data": [], "has_more": False})
        return httpx.Response(200, json=UPLOAD | {"received_bytes": 0 if request.method == "POST" else 5})

    def _complete(self):
        self.completions += 1
        if self.completions == 1:
            return refusal(409, "upload_checking", "the lines are being checked", {"Retry-After": "0"})
        if self.completions == 2:
            return refusal(422, "invalid_line", "line 57 is not JSON")
        return refusal(404, "upload_not_found", "there is no upload")


def refusal(status, code, message, headers=None):
    error = {"message": message, "type": "error", "param": "file", "code": code}
    return httpx.Response(status, json={"error": error}, headers=headers)


def test_refused_line_is_reported_and_not_the_removed_upload(tmp_path):
    (tmp_path / "bad.jsonl").write_text("{bad\n")
    service = Service()
    client = Client("http://x", "secret", transport=service_transport(service), sleep=lambda _: None)
    with pytest.raises(InvalidRequestError, match="line 57 is not JSON"):
        client.upload_file(tmp_path / "bad.jsonl")
    assert service.completions == 2


def test_show_names_the_kind_of_digest(service, run):
    service.on("GET", f"/v1/files/{FILE['id']}", FILE)
    shown = dict(line.split(maxsplit=1) for line in run("files", "show", FILE["id"]).stdout.splitlines())
    assert shown["sha256"] == "ab" * 32
    assert (shown["name"], shown["examples"]) == ("chats.jsonl", "3")
