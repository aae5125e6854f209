"""docs/api.md has a curl and a Python example for every route, and each example works."""

import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.auth.sign_in import MungeSignIn
from tests.support.live_world import served
from tests.support.munge import FakeAccounts, FakeMunge
from tests.support.seeds import CHAT, CODE, Seeds, seed
from tests.support.world import SPEC, World
from trainyard.client import Client, ConflictError
from trainyard.contract.wire.sign_in import sign_in_message

PAGE = Path(__file__).parents[4] / "docs" / "api.md"
ENTRY = re.compile(
    r"### `(?P<route>[A-Z]+ [^`]+)`\n\n(?P<words>[^\n]+)\n\n"
    r"```bash\n(?P<curl>.*?)\n```\n```python\n(?P<python>.*?)\n```",
    re.S,
)

CONFLICTS = {"POST /v1/jobs/{job_id}/resolve", "DELETE /v1/tokens/self"}
"""What cannot be done to a job that is in order, and to the token of an administrator."""

ENDLESS = {"GET /v1/stream", "GET /v1/jobs/{job_id}/stream"}


@dataclass
class DocsService:
    """A service with something behind every route, and how to reach it."""

    world: World
    seeds: Seeds
    url: str
    folder: Path
    sign_ins: list[tuple[str, str]]
    """A nonce and a credential for each half."""


def entries() -> dict[str, dict[str, str]]:
    by_route = {match["route"]: match.groupdict() for match in ENTRY.finditer(PAGE.read_text())}
    assert by_route
    return by_route


ENTRIES = entries()


@pytest.fixture(scope="module")
def docs_service(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocsService]:
    folder = tmp_path_factory.mktemp("page")
    shutil.copy(migrated_sqlite, folder / "test.sqlite")
    world = World(f"sqlite:///{folder / 'test.sqlite'}", folder / "state")
    seeds = seed(world)
    (folder / "code.tar").write_bytes(CODE)
    (folder / "chat.jsonl").write_bytes(CHAT)
    (folder / "my-code").mkdir()
    (folder / "my-code" / "train.py").write_text("print('hello')\n")
    munge, accounts = FakeMunge(), FakeAccounts({"ada": 4711})
    settings = world.settings.model_copy(update={"munge_role": "user"})
    world.app_state.munge_sign_in = MungeSignIn(world.database, settings, munge, accounts)
    nonces = [world.app_state.munge_sign_in.create_nonce("127.0.0.1", world.clock())[0] for _ in range(2)]
    messages = [sign_in_message(settings.service_url, socket.gethostname(), nonce) for nonce in nonces]
    with served(world) as url:
        sign_ins = [(nonce, munge.make(4711, message)) for nonce, message in zip(nonces, messages, strict=True)]
        yield DocsService(world, seeds, url, folder, sign_ins)
    world.database.dispose()


def test_page_documents_exactly_the_openapi_routes(docs_service: DocsService) -> None:
    paths = docs_service.world.app.openapi()["paths"]
    assert set(ENTRIES) == {f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs}


def test_downloads_with_curl_fail_on_http_errors() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"curl.* -(O|OJ|o)( |$)", line)]
    assert lines
    assert [line for line in lines if "--fail" not in line] == []


def environment(docs_service: DocsService, half: int) -> dict[str, str]:
    """What the examples call things. Each half has its own of what a line uses up."""
    values, special = docs_service.seeds.values, docs_service.seeds.special
    victims = special["delete_job"]["job_id"]
    queued, running, done, other = values["job_id"]
    return {
        "URL": docs_service.url,
        "TOKEN": docs_service.world.token,
        "WORKER_TOKEN": docs_service.seeds.worker_token,
        "JOB": running,
        "DONE": done,
        "OTHER_JOB": (queued, other)[half],
        "CANCELLED": victims[2 * half],
        "CANCELLED_TOO": victims[2 * half + 1],
        "ATTEMPT": values["aid"][0],
        "CHECKPOINT": values["checkpoint_id"][0],
        "OLD_CHECKPOINT": special["delete_checkpoint"]["checkpoint_id"][half],
        "DIGEST": values["digest"][0],
        "FILE": values["file_id"][0],
        "OLD_FILE": special["delete_file"]["file_id"][half],
        "UPLOAD": values["upload_id"][0],
        "NEW_UPLOAD": special["send_part"]["upload_id"][half],
        "RECEIVED_UPLOAD": special["complete_upload"]["upload_id"][half],
        "OLD_UPLOAD": special["abandon_upload"]["upload_id"][half],
        "MODEL": values["model_name"][0],
        "OLD_MODEL": special["delete_model"]["model_name"][half],
        "UNNAMED_MODEL": special["delete_model_version"]["model_name"][half],
        "RENAMED_MODEL": special["delete_model_alias"]["model_name"][half],
        "OLD_SECRET": special["delete_secret"]["secret_name"][half],
        "NONCE": docs_service.sign_ins[half][0],
        "CREDENTIAL": docs_service.sign_ins[half][1],
        "UNIX_USER": values["user_name"][0],
        "TOKEN_ID": special["revoke_token"]["token_id"][half],
        "WEBHOOK": values["webhook_id"][0],
        "OTHER_WEBHOOK": special["delete_webhook"]["webhook_id"][half],
        "VIEW": values["view_id"][0],
        "OLD_VIEW": special["delete_view"]["view_id"][half],
        "SWEEP": values["sweep_id"][0],
        "ESTIMATE": values["estimate_id"][0],
        "ORPHAN": values["orphan_id"][0],
    }


@pytest.mark.parametrize("route", ENTRIES)
def test_curl_example_succeeds(docs_service: DocsService, route: str) -> None:
    seconds = 2 if route in ENDLESS else 20
    quiet = f"curl() {{ command curl -sS -o answer -w '%{{stderr}}%{{http_code}}' --max-time {seconds} \"$@\"; }}\n"
    line = re.sub(r" -(OJ?|C -|o code\.tar)(?= |$)", "", ENTRIES[route]["curl"])
    made = subprocess.run(
        ["bash", "-c", quiet + line],
        cwd=docs_service.folder,
        env={"PATH": os.environ["PATH"], **environment(docs_service, 0)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    status = int(re.findall(r"\d{3}", made.stderr)[-1 if route not in ENDLESS else 0])
    answer = (docs_service.folder / "answer").read_bytes()[:300] if (docs_service.folder / "answer").exists() else b""
    assert status in ((409,) if route in CONFLICTS else range(200, 300)), (made.stderr, answer)


@pytest.mark.parametrize("route", ENTRIES)
def test_python_example_succeeds(docs_service: DocsService, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(docs_service.folder)
    names = environment(docs_service, 1)
    with Client(docs_service.url, docs_service.world.token) as client:
        scope: dict[str, Any] = {
            "client": client,
            "httpx": httpx,
            "url": docs_service.url,
            "headers": {"Authorization": f"Bearer {docs_service.world.token}"},
            "worker_headers": {"Authorization": f"Bearer {docs_service.seeds.worker_token}"},
            "spec": SPEC,
            "script_spec": {"task": "script", "argv": ["train.py"]},
            "job_id": names["JOB"],
            "other_job_id": names["OTHER_JOB"],
            "done_job_id": names["DONE"],
            "cancelled_job_id": names["CANCELLED"],
            "other_cancelled_job_id": names["CANCELLED_TOO"],
            "attempt_id": names["ATTEMPT"],
            "checkpoint_id": names["CHECKPOINT"],
            "old_checkpoint_id": names["OLD_CHECKPOINT"],
            "digest": names["DIGEST"],
            "file_id": names["FILE"],
            "old_file_id": names["OLD_FILE"],
            "upload_id": names["UPLOAD"],
            "new_upload_id": names["NEW_UPLOAD"],
            "received_upload_id": names["RECEIVED_UPLOAD"],
            "old_upload_id": names["OLD_UPLOAD"],
            "model_name": names["MODEL"],
            "old_model": names["OLD_MODEL"],
            "unnamed_model": names["UNNAMED_MODEL"],
            "renamed_model": names["RENAMED_MODEL"],
            "old_secret": names["OLD_SECRET"],
            "nonce": names["NONCE"],
            "credential": names["CREDENTIAL"],
            "unix_user": names["UNIX_USER"],
            "other_token_id": names["TOKEN_ID"],
            "webhook_id": names["WEBHOOK"],
            "other_webhook_id": names["OTHER_WEBHOOK"],
            "view_id": names["VIEW"],
            "old_view_id": names["OLD_VIEW"],
            "sweep_id": names["SWEEP"],
            "estimate_id": names["ESTIMATE"],
            "orphan_id": names["ORPHAN"],
        }
        line = ENTRIES[route]["python"]
        with continuous_submissions(client) if route == "GET /v1/stream" else nullcontext():
            try:
                exec(compile(line, route, "exec"), scope)
            except ConflictError:
                assert route in CONFLICTS


@contextmanager
def continuous_submissions(client: Client) -> Iterator[None]:
    """Again and again, for who listens from now on."""
    over = threading.Event()

    def submit() -> None:
        while not over.wait(0.5):
            client.submit(SPEC)

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
