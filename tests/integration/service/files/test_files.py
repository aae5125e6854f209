"""Data files are uploaded in one request or in parts, and stored once for each content."""

import hashlib
import json
import os
from datetime import timedelta
from typing import Any

import pytest

from service.auth.principals import Principal
from service.core.errors import ConflictError
from service.core.ids import new_id
from tests.support.operations import BOUNDARY, file_form
from tests.support.world import World
from trainyard.contract.data_files import MAX_SINGLE_UPLOAD_BYTES, data_file

pytestmark = pytest.mark.databases("sqlite")

FORM = f"multipart/form-data; boundary={BOUNDARY}"
LINES = b'{"text": "one"}\n{"text": "two"}\n'
ADMIN = Principal(kind="user", id="any", name="admin", role="admin")
DIGEST = f"sha256:{hashlib.sha256(LINES).hexdigest()}"


def upload(client: Any, content: bytes = LINES, name: str = "text.jsonl") -> dict[str, Any]:
    answer = client.post("/v1/files", files={"file": (name, content)})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def start(client: Any, content: bytes = LINES, **changes: Any) -> str:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    body = {"name": "text.jsonl", "size_bytes": len(content), "digest": digest, **changes}
    answer = client.post("/v1/uploads", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def send(client: Any, upload_id: str, offset: int, content: bytes) -> Any:
    return client.put(f"/v1/uploads/{upload_id}", params={"offset": offset}, content=content)


def stored(world: World) -> list[str]:
    return sorted(path.name for path in (world.settings.runs / "files").glob("*"))


def test_uploaded_file_is_checked_listed_and_returned(world: World) -> None:
    made = upload(world.client, name="some folder/täxt\u202e.jsonl")
    assert (made["format"], made["examples"], made["size_bytes"], made["digest"]) == ("text", 2, len(LINES), DIGEST)
    assert made["name"] == "täxt.jsonl"
    assert world.client.get(f"/v1/files/{made['id']}").json() == made
    assert world.client.get("/v1/files").json()["data"] == [made]
    content = world.client.get(f"/v1/files/{made['id']}/content")
    assert content.content == LINES
    part = world.client.get(f"/v1/files/{made['id']}/content", headers={"Range": "bytes=2-5"})
    assert (part.status_code, part.content) == (206, LINES[2:6])
    audit = world.client.get("/v1/audit").json()["data"][0]
    assert (audit["action"], audit["target"]) == ("upload_file", made["id"])


def test_bad_line_is_refused_with_its_number_and_leaves_no_file(world: World) -> None:
    answer = world.client.post("/v1/files", files={"file": ("text.jsonl", LINES + b'{"text": 3}\n')})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (422, "file", "invalid_line")
    assert error["message"].startswith("line 3 does not have format `text`")
    assert stored(world) == []
    assert list((world.settings.runs / "files").iterdir()) == []


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/json", b"{}", "not_a_form"),
        ("multipart/form-data", b"", "not_a_form"),
        (FORM, b"nonsense", "invalid_form"),
        (FORM, file_form("x", LINES)[:-9], "invalid_form"),
        (
            f"multipart/form-data; boundary={BOUNDARY}",
            file_form("x", LINES).replace(b'"file"', b'"fine"'),
            "invalid_value",
        ),
        (FORM, file_form("x", b"").replace(b"fine", b"x" * 5000), "malformed"),
    ],
)
def test_malformed_form_is_refused(world: World, content_type: str, body: bytes, code: str) -> None:
    answer = world.client.post("/v1/files", content=body, headers={"Content-Type": content_type})
    assert (answer.status_code // 100, answer.json()["error"]["code"]) == (4, code)
    assert not (world.settings.runs / "files").exists() or not os.listdir(world.settings.runs / "files")


def test_content_is_stored_once_until_its_last_reference_is_deleted(world: World) -> None:
    first, second = upload(world.client), upload(world.client, name="again.jsonl")
    assert first["id"] != second["id"]
    assert stored(world) == [data_file(world.settings.runs, DIGEST).name]
    age(world)
    assert world.client.delete(f"/v1/files/{first['id']}").status_code == 204
    world.run_maintenance()
    assert stored(world) == [data_file(world.settings.runs, DIGEST).name]
    assert world.client.delete(f"/v1/files/{second['id']}").status_code == 204
    assert world.client.get(f"/v1/files/{second['id']}").json()["error"]["code"] == "file_not_found"
    world.run_maintenance()
    assert stored(world) == []


def age(world: World, hours: int = 25) -> None:
    """Let all stored files be as old as the retention."""
    world.clock.advance(hours * 3600)
    for path in (world.settings.runs / "files").iterdir():
        os.utime(path, (world.clock().timestamp() - hours * 3600,) * 2)


def test_upload_in_parts_continues_where_it_stopped(world: World) -> None:
    upload_id = start(world.client)
    assert send(world.client, upload_id, 0, LINES[:10]).json()["received_bytes"] == 10
    again = send(world.client, upload_id, 0, LINES[:10])
    assert (again.status_code, again.json()["error"]["code"]) == (409, "upload_offset")
    early = world.client.post(f"/v1/uploads/{upload_id}/complete")
    assert (early.status_code, early.json()["error"]["code"]) == (409, "upload_incomplete")
    assert world.client.get(f"/v1/uploads/{upload_id}").json()["received_bytes"] == 10
    assert send(world.client, upload_id, 10, LINES[10:]).status_code == 200
    made = world.client.post(f"/v1/uploads/{upload_id}/complete")
    assert made.status_code == 201
    assert (made.json()["digest"], made.json()["examples"]) == (DIGEST, 2)
    assert world.client.post(f"/v1/uploads/{upload_id}/complete").json() == made.json()
    assert len(world.client.get("/v1/files").json()["data"]) == 1
    assert send(world.client, upload_id, len(LINES), b"").json()["error"]["code"] == "upload_complete"
    assert [path.name for path in (world.settings.runs / "files").iterdir()] == stored(world)


def test_part_cannot_exceed_the_announced_size(world: World) -> None:
    upload_id = start(world.client)
    assert send(world.client, upload_id, 0, LINES + b"x").status_code == 413
    assert world.client.get(f"/v1/uploads/{upload_id}").json()["received_bytes"] <= len(LINES)


def test_completed_content_is_not_changed_by_a_part_that_still_arrives(world: World) -> None:
    """A part that began before must not write to the file that the digest names."""
    upload_id = start(world.client)
    late = world.app_state.files.open_part(ADMIN, upload_id, 0, world.clock())
    assert send(world.client, upload_id, 0, LINES).status_code == 200
    assert world.client.post(f"/v1/uploads/{upload_id}/complete").status_code == 201
    with pytest.raises(ConflictError):
        late.add(b"x" * len(LINES))
    late.close()
    assert data_file(world.settings.runs, DIGEST).read_bytes() == LINES


def test_upload_with_another_digest_or_a_bad_line_is_removed(world: World) -> None:
    for content, announced, code in (
        (LINES, {"digest": "sha256:" + "0" * 64}, "digest_mismatch"),
        (b'{"text": 1}\n', {}, "invalid_line"),
    ):
        upload_id = start(world.client, content, **announced)
        answer = send(world.client, upload_id, 0, content)
        if code == "digest_mismatch":
            answer = world.client.post(f"/v1/uploads/{upload_id}/complete")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, code)
        assert world.client.get(f"/v1/uploads/{upload_id}").status_code == 404
    assert list((world.settings.runs / "files").iterdir()) == []


def test_digest_alone_gives_nobody_the_content(world: World) -> None:
    upload(world.client)
    anna = world.new_user("user", "anna")
    upload_id = start(anna)
    answer = anna.post(f"/v1/uploads/{upload_id}/complete")
    assert answer.json()["error"]["code"] == "upload_incomplete"


def test_uploads_are_private_and_files_change_only_by_their_owner(world: World) -> None:
    anna, bert, vera = world.new_user("user", "anna"), world.new_user("user", "bert"), world.new_user("viewer", "vera")
    upload_id, file_id = start(anna), upload(anna)["id"]
    assert bert.get(f"/v1/uploads/{upload_id}").status_code == 404
    assert bert.delete(f"/v1/uploads/{upload_id}").status_code == 404
    assert bert.get("/v1/uploads").json()["data"] == []
    assert [one["id"] for one in world.client.get("/v1/uploads").json()["data"]] == [upload_id]
    assert vera.get(f"/v1/files/{file_id}").status_code == 200
    assert bert.delete(f"/v1/files/{file_id}").status_code == 403
    assert vera.post("/v1/files", files={"file": ("x", LINES)}).status_code == 403
    assert anna.delete(f"/v1/uploads/{upload_id}").status_code == 204
    assert anna.delete(f"/v1/files/{file_id}").status_code == 204


def test_abandoned_upload_is_removed_after_its_retention(world: World) -> None:
    upload_id = start(world.client)
    send(world.client, upload_id, 0, LINES[:5])
    age(world, 23)
    world.run_maintenance()
    assert world.client.get(f"/v1/uploads/{upload_id}").json()["received_bytes"] == 5
    age(world, 2)
    world.run_maintenance()
    assert world.client.get(f"/v1/uploads/{upload_id}").status_code == 404
    assert list((world.settings.runs / "files").iterdir()) == []


def test_quota_counts_files_and_announced_uploads(world: World) -> None:
    world.app_state.files.settings.file_quota_gb_per_user = 70 / 2**30
    upload(world.client)
    start(world.client)
    for answer in (
        world.client.post("/v1/files", files={"file": ("x", LINES)}),
        world.client.post("/v1/uploads", json={"name": "x", "size_bytes": 30, "digest": DIGEST}),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "file_quota_exceeded")
        assert "TRAINYARD_FILE_QUOTA_GB_PER_USER" in answer.json()["error"]["message"]
    assert world.new_user("user", "anna").post("/v1/files", files={"file": ("x", LINES)}).status_code == 201


def test_too_large_file_is_refused_before_it_is_sent(world: World) -> None:
    body = {"name": "x", "size_bytes": int(11e9), "digest": DIGEST}
    answer = world.client.post("/v1/uploads", json=body)
    assert answer.json()["error"]["code"] == "file_too_large"
    headers = {"Content-Type": FORM}
    length = {"Content-Length": str(MAX_SINGLE_UPLOAD_BYTES * 2)}
    assert world.client.post("/v1/files", content=b"x", headers=headers | length).status_code == 413
    chunk = json.dumps({"text": "x" * 10**6}).encode() + b"\n"
    body = file_form("x", b"CUT").split(b"CUT")
    parts = [body[0], *[chunk] * 68, body[1]]
    answer = world.client.post("/v1/files", content=iter(parts), headers=headers)
    assert answer.status_code == 413
    assert not (world.settings.runs / "files").exists() or list((world.settings.runs / "files").iterdir()) == []


@pytest.mark.parametrize("label", ["upload.before-commit", "upload.after-commit"])
def test_completion_that_crashes_can_be_repeated(world: World, label: str) -> None:
    upload_id = start(world.client)
    send(world.client, upload_id, 0, LINES)
    world.fail_at(label)
    with pytest.raises(SystemExit):
        world.app_state.files.complete(ADMIN, upload_id, world.clock())
    made = world.client.post(f"/v1/uploads/{upload_id}/complete")
    assert made.status_code == 201
    assert len(world.client.get("/v1/files").json()["data"]) == 1
    world.clock.advance(timedelta(hours=25).total_seconds())
    world.run_maintenance()
    assert list((world.settings.runs / "files").iterdir()) == [data_file(world.settings.runs, DIGEST)]


def test_unknown_ids_are_not_found(world: World) -> None:
    for path in (f"/v1/files/{new_id('file', world.clock())}", "/v1/files/file_x", "/v1/files/../../etc/passwd"):
        assert world.client.get(path).status_code == 404
