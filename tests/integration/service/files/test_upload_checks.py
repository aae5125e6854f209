"""Uploads are checked while their parts arrive, for a limited time, and without delay for other users."""

import hashlib
import json
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.api.routes import files as file_routes
from service.auth.principals import Principal
from service.core.errors import ConflictError
from service.core.thread_slots import ThreadSlots
from service.files import store, upload_checks
from service.files.line_checks import LineChecker
from service.files.service import FileService
from service.files.store import Parts
from service.files.upload_checks import UploadCheck
from tests.support.world import World
from trainyard.contract.data_files import data_file

pytestmark = pytest.mark.databases("sqlite")

LINES = b"".join(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in ("one", "zwölf", "x" * 40))
ARRAY = b"[" + b",\n".join(LINES.splitlines()) + b"]\n"
ADMIN = Principal(kind="user", id="any", name="admin", role="admin")


def start(client: Any, content: bytes) -> str:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    answer = client.post("/v1/uploads", json={"name": "a.jsonl", "size_bytes": len(content), "digest": digest})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def send(client: Any, upload_id: str, offset: int, content: bytes) -> Any:
    return client.put(f"/v1/uploads/{upload_id}", params={"offset": offset}, content=content)


def complete(client: Any, upload_id: str) -> Any:
    return client.post(f"/v1/uploads/{upload_id}/complete")


def checked(answer: Any) -> tuple[int, str]:
    """The number of examples and the digest of the file that an upload became."""
    assert answer.status_code == 201, answer.text
    return answer.json()["examples"], answer.json()["digest"]


EXPECTED = (3, f"sha256:{hashlib.sha256(LINES).hexdigest()}")


@pytest.mark.parametrize("size", [5, 29])
def test_lines_are_cut_by_parts_of_any_size(world: World, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    upload_id = start(world.client, LINES)
    for offset in range(0, len(LINES), size):
        assert send(world.client, upload_id, offset, LINES[offset : offset + size]).status_code == 200
        assert send(world.client, upload_id, offset, LINES[offset : offset + size]).status_code == 409, "twice"
        assert send(world.client, upload_id, offset + 2 * size, b"x").status_code == 409, "out of order"
    monkeypatch.setattr(LineChecker, "feed", None)
    assert checked(complete(world.client, upload_id)) == EXPECTED, "nothing is left to check"
    assert data_file(world.settings.runs, EXPECTED[1]).read_bytes() == LINES


@pytest.mark.parametrize("content", [ARRAY, ARRAY.replace(b"\n", b"")], ids=["lines", "one_line"])
@pytest.mark.parametrize("size", [5, 1000])
def test_items_of_an_array_are_checked_in_steps(
    world: World, content: bytes, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_checks, "_PROCESSOR_SECONDS", -1.0)
    monkeypatch.setattr(upload_checks, "_CHUNK", 16)
    upload_id = start(world.client, content)
    for offset in range(0, len(content), size):
        assert send(world.client, upload_id, offset, content[offset : offset + size]).status_code == 200
    answers = [complete(world.client, upload_id) for _ in range(5)]
    examples, digest = checked(next(answer for answer in answers if answer.status_code == 201))
    assert (examples, digest) == (3, f"sha256:{hashlib.sha256(content).hexdigest()}")


def test_bad_lines_that_were_received_are_counted(world: World) -> None:
    content = LINES + b'{"text": 7}\n' * 20
    upload_id = start(world.client, content + LINES)
    answer = send(world.client, upload_id, 0, content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_line")
    message = "at least 20 of the first 23 lines are bad: line 4 does not have format `text`: expected"
    assert answer.json()["error"]["message"].startswith(message)
    answer = world.client.post("/v1/files", files={"file": ("a.jsonl", content)})
    assert answer.json()["error"]["message"].startswith("20 of 23 lines are bad: line 4 ")
    assert list((world.settings.runs / "files").iterdir()) == []


def test_bad_line_is_refused_with_the_part_that_ends_it(world: World) -> None:
    content = LINES + b'{"text": 7}\n' + LINES
    upload_id, border = start(world.client, content), len(LINES) + 8
    assert send(world.client, upload_id, 0, content[:border]).status_code == 200
    answer = send(world.client, upload_id, border, content[border : border + 5])
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_line")
    assert answer.json()["error"]["message"].startswith("line 4 ")
    assert world.client.get(f"/v1/uploads/{upload_id}").status_code == 404
    assert list((world.settings.runs / "files").iterdir()) == []


@pytest.mark.parametrize("at", [10, len(LINES)], ids=["within_a_line", "whole"])
def test_check_goes_on_after_a_restart(world: World, at: int) -> None:
    upload_id = start(world.client, LINES)
    assert send(world.client, upload_id, 0, LINES[:at]).status_code == 200
    world.app_state.files = FileService(world.database, world.settings)
    assert at == len(LINES) or send(world.client, upload_id, at, LINES[at:]).status_code == 200
    assert checked(complete(world.client, upload_id)) == EXPECTED


def test_each_request_checks_for_a_limited_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_checks, "_PROCESSOR_SECONDS", -1.0)
    monkeypatch.setattr(upload_checks, "_CHUNK", 16)
    upload_id = start(world.client, LINES)
    assert send(world.client, upload_id, 0, LINES).status_code == 200
    answer = complete(world.client, upload_id)
    assert answer.json()["error"]["code"] == "upload_checking"
    assert answer.headers["Retry-After"]
    assert checked(complete(world.client, upload_id)) == EXPECTED, "each request checks a line at least"


def test_single_request_may_use_a_limited_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_routes, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(file_routes, "_SECONDS_PER_BYTE", 0.0)
    answer = world.client.post("/v1/files", files={"file": ("a.jsonl", LINES)})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["code"] == "too_expensive"
    assert "trainyard files upload" in answer.json()["error"]["message"]
    assert list((world.settings.runs / "files").iterdir()) == []


def test_check_has_no_line_in_memory_between_requests(tmp_path: Path) -> None:
    """Else the unfinished uploads of many users use up the memory of the service."""
    (tmp_path / "part").write_bytes(b'{"text": "' + b"x" * 60_000)
    checks = [UploadCheck(tmp_path / "part", 100_000, None) for _ in range(20)]
    tracemalloc.start()
    try:
        for check in checks:
            check.advance()
        assert tracemalloc.get_traced_memory()[0] < 20 * 6_000
    finally:
        tracemalloc.stop()


def test_part_without_a_free_slot_leaves_no_file_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a user whose requests wait for each other uses up the open files of the service."""
    slots, held, over = ThreadSlots(each=1, total=1, wait_seconds=0.05), threading.Event(), threading.Event()
    monkeypatch.setattr(world.app_state, "user_slots", slots)
    upload_id = start(world.client, LINES)

    def occupy() -> None:
        with slots.hold("admin"):
            held.set()
            assert over.wait(30)

    def late() -> Iterator[bytes]:
        occupied.start()
        assert held.wait(30)
        yield LINES

    occupied = threading.Thread(target=occupy)
    try:
        assert send(world.client, upload_id, 0, late()).status_code == 429
    finally:
        over.set()
        occupied.join()
    assert not [path for path in Path("/proc/self/fd").iterdir() if upload_id in os.path.realpath(path)]
    assert send(world.client, upload_id, 0, LINES).status_code == 200


def before_first(monkeypatch: pytest.MonkeyPatch, part: Any, name: str, act: Callable[[], None]) -> None:
    """Call `act` before the first call of a function."""
    function = getattr(part, name)

    def call(*arguments: Any) -> Any:
        monkeypatch.setattr(part, name, function)
        act()
        return function(*arguments)

    monkeypatch.setattr(part, name, call)


AT = pytest.mark.parametrize(
    ("part", "name"),
    [(FileService, "_complete"), (Parts, "publish"), (store, "_publish")],
    ids=["check", "link", "rename"],
)


@AT
def test_two_processes_complete_an_upload_as_one_file(
    world: World, part: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id, files = start(world.client, LINES), []
    assert send(world.client, upload_id, 0, LINES).status_code == 200
    other = FileService(world.database, world.settings)
    before_first(monkeypatch, part, name, lambda: files.append(other.complete(ADMIN, upload_id, world.clock()).id))
    answer = complete(world.client, upload_id)
    assert checked(answer) == EXPECTED
    assert files == [answer.json()["id"]]
    assert [path.name for path in (world.settings.runs / "files").iterdir()] == [data_file(Path(), EXPECTED[1]).name]


@AT
def test_upload_that_is_removed_while_it_is_completed_is_not_found(
    world: World, part: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id = start(world.client, LINES)
    assert send(world.client, upload_id, 0, LINES).status_code == 200
    other = FileService(world.database, world.settings)
    before_first(monkeypatch, part, name, lambda: other.abandon(ADMIN, upload_id))
    answer = complete(world.client, upload_id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "upload_not_found")


def test_received_bytes_never_change(world: World) -> None:
    """Else a writer could change lines after their check."""
    upload_id = start(world.client, LINES)
    first, second = (world.app_state.files.open_part(ADMIN, upload_id, 0, world.clock()) for _ in range(2))
    first.add(LINES[:10])
    with pytest.raises(ConflictError):
        second.add(b"x" * 10)
    first.add(LINES[10:])
    first.close()
    second.close()
    assert checked(complete(world.client, upload_id)) == EXPECTED


def test_two_processes_append_to_an_upload_one_after_the_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    upload_id, conflicts, check = start(world.client, LINES), [], store._check_offset
    processes = (world.app_state.files, FileService(world.database, world.settings))
    first, second = (files.open_part(ADMIN, upload_id, 0, world.clock()) for files in processes)

    def add_second() -> None:
        try:
            second.add(b"x" * len(LINES))
        except ConflictError as error:
            conflicts.append(error)

    def check_and_let_second_write(handle: int, offset: int) -> None:
        check(handle, offset)
        if adding.ident is None:
            adding.start()
            adding.join(0.2)

    adding = threading.Thread(target=add_second)
    monkeypatch.setattr(store, "_check_offset", check_and_let_second_write)
    first.add(LINES)
    adding.join()
    assert len(conflicts) == 1
    first.close()
    second.close()
    assert checked(complete(world.client, upload_id)) == EXPECTED


def test_checks_of_one_user_do_not_delay_the_uploads_of_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of one user are checked without end; files of another user are stored meanwhile."""
    anna, bert = world.new_user("user", "anna"), world.new_user("user", "bert")
    started, released, feed = threading.Event(), threading.Event(), LineChecker.feed

    def slow_feed(checker: LineChecker, chunk: bytes) -> None:
        if b"slow" in chunk:
            started.set()
            assert released.wait(60)
        feed(checker, chunk)

    monkeypatch.setattr(LineChecker, "feed", slow_feed)
    flood = [b'{"text": "slow %d"}\n' % number for number in range(6)]

    def upload_slowly(content: bytes) -> tuple[int, int]:
        upload_id = start(anna, content)
        return send(anna, upload_id, 0, content).status_code, complete(anna, upload_id).status_code

    with ThreadPoolExecutor(len(flood)) as threads:
        answers = [threads.submit(upload_slowly, content) for content in flood]
        try:
            assert started.wait(10)
            assert bert.post("/v1/files", files={"file": ("a.jsonl", LINES)}).status_code == 201
            upload_id = start(bert, LINES)
            assert send(bert, upload_id, 0, LINES).status_code == 200
            assert checked(complete(bert, upload_id)) == EXPECTED
        finally:
            released.set()
        assert [answer.result() for answer in answers] == [(200, 201)] * len(flood)
