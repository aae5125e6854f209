"""docs/api-reference.md is generated, and each of its examples works; so do the names of the client's calls."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from string import Template
from typing import Any

import httpx
import pytest

from service.auth.sign_in import MungeSignIn
from service.auth.tokens import hash_token
from service.db.models import SignInCode
from tests.support.api_calls import METHODS, OTHER_NAMES, SNIPPETS, client_method
from tests.support.api_reference import Operation, openapi_document, operations, reference, variable
from tests.support.live_world import served
from tests.support.munge import FakeAccounts, FakeMunge
from tests.support.seeds import CHAT, CODE, LINES, Seeds, seed
from tests.support.world import SPEC, World
from trainyard.client import Client, ConflictError
from trainyard.contract.wire.sign_in import sign_in_message

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "api-reference.md").read_text()
EXAMPLES = re.compile(
    r"### `(?P<route>[A-Z]+ [^`]+)`\n.*?```bash\n(?P<curl>.*?)\n```\n```python\n(?P<python>.*?)\n```", re.S
)
CONFLICTS = {"resolve_job", "revoke_own_token"}
"""What cannot be done to a job that is in order, and to the token of an administrator."""
MADE_OF_OTHERS = {
    *("aclose", "fork", "job_url", "metrics_csv", "metrics_csv_of", "read_file", "samples", "sweep_url", "view", "wait")
}
"""Calls of the client that use documented routes."""
PROGRAM_CODE = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY"
"""The code of the example."""
RUN_BY_CURL = {"get_job", "submit_job", "upload_file", "append_log", "check_export_file", "download_checkpoint"}
"""Examples that curl runs; of the others the command line is parsed."""


@dataclass
class DocsService:
    """A service with something behind every route, and how to reach it."""

    world: World
    seeds: Seeds
    url: str
    folder: Path
    operations: Mapping[str, Operation]
    sign_ins: list[dict[str, str]]
    """A nonce and a credential for each kind of example."""

    def values(self, operation: Operation, half: int) -> dict[str, str]:
        """Return the variables of an example. Each kind of example has its own of what an example uses up."""
        queued, running, done, _ = jobs = self.seeds.values["job_id"]
        victims = self.seeds.special["delete_job"]["job_id"]
        chosen = {"job_id": running, **self.sign_ins[half]}
        for one in operation.parameters("path"):
            given = self.seeds.of(operation.id, one["name"])
            assert given, f"add a value of `{one['name']}` to tests/support/seeds.py"
            chosen[variable(one["name"])] = running if given == jobs else given[half % len(given)]
        needed = {"cancel_job": queued, "retry_job": victims[2 + half], "register_model_version": done}
        if operation.id in needed or re.search("/(checkpoints|export|artifacts)(/|$)", operation.path):
            chosen["job_id"] = needed.get(operation.id, done)
        return chosen

    def prepare(self, operation: Operation) -> None:
        """Rename the views and delete the project that have the name of the example, or store the code of the
        example."""
        if operation.id == "exchange_sign_in_code":
            now, (token_id,) = self.world.clock(), self.seeds.values["token_id"]
            row = {"token_id": token_id, "created_at": now, "expires_at": now + timedelta(minutes=1)}
            with self.world.database.write() as session:
                session.add(SignInCode(hash=hash_token(PROGRAM_CODE), for_program=True, **row))
        if operation.id == "create_project":
            self.world.client.delete("/v1/projects/zoo")
        if operation.id in ("create_view", "replace_view"):
            for view in self.world.client.get("/v1/views").json()["data"]:
                self.world.client.put(f"/v1/views/{view['id']}", json={"name": view["id"]})


@pytest.fixture(scope="module")
def docs_service(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocsService]:
    folder = tmp_path_factory.mktemp("page")
    shutil.copy(migrated_sqlite, folder / "test.sqlite")
    provider = {"oidc_issuer": "https://login.example.org", "oidc_client_id": "yard", "oidc_client_secret": "secret"}
    settings = {**provider, "oidc_role": "user", "rate_burst": 10**6}
    world = World(f"sqlite:///{folder / 'test.sqlite'}", folder / "state", **settings)
    seeds = seed(world)
    for name, content in {"code.tar": CODE, "chat.jsonl": CHAT, "part": LINES}.items():
        (folder / name).write_bytes(content)
    (folder / "my-code").mkdir()
    (folder / "my-code" / "train.py").write_text("print('hello')\n")
    munge, accounts = FakeMunge(), FakeAccounts({"ada": 4711})
    settings = world.settings.model_copy(update={"munge_role": "user"})
    world.app_state.munge_sign_in = MungeSignIn(world.database, settings, munge, accounts)
    nonces = [world.app_state.munge_sign_in.create_nonce("127.0.0.1", world.clock())[0] for _ in range(2)]
    messages = [sign_in_message(settings.service_url, socket.gethostname(), nonce) for nonce in nonces]
    by_title = {one.title: one for one in operations(world.app.openapi())}
    with served(world) as url:
        pairs = zip(nonces, messages, strict=True)
        sign_ins = [{"nonce": nonce, "credential": munge.make(4711, message)} for nonce, message in pairs]
        yield DocsService(world, seeds, url, folder, by_title, sign_ins)
    world.database.dispose()


@pytest.fixture
def examples(docs_service: DocsService) -> list[tuple[Operation, str, str]]:
    """The routes with their examples; what ends an attempt is the last."""
    made = [(docs_service.operations[one["route"]], one["curl"], one["python"]) for one in EXAMPLES.finditer(PAGE)]
    assert len(made) == len(docs_service.operations)
    return sorted(made, key=lambda one: (one[0].id == "finish_attempt", one[0].verb == "DELETE"))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document()


def test_reference_is_generated_from_the_routes(document: dict[str, Any]) -> None:
    assert reference(document) == PAGE, "run `make docs`"


def test_downloads_with_curl_fail_on_http_errors() -> None:
    lines = [line for line in ((DOCS / "api.md").read_text() + PAGE).splitlines() if line.startswith("curl")]
    downloads = [line for line in lines if re.search(r" -(O|OJ|o)( |$)", line)]
    assert downloads
    assert [line for line in downloads if "--fail" not in line] == []


def test_exceptions_of_the_rule_for_names_are_needed(document: dict[str, Any]) -> None:
    ids = {one.id for one in operations(document)}
    assert {*OTHER_NAMES, *SNIPPETS} <= ids
    assert {name for name in OTHER_NAMES.values() if name} <= METHODS.keys()
    for operation, name in OTHER_NAMES.items():
        trimmed = [operation.removeprefix(verb) for verb in ("list_", "get_", "find_", "make_")]
        assert name not in (operation, operation.removesuffix("_job"), *trimmed)


def test_every_call_of_the_client_that_is_a_route_is_documented(document: dict[str, Any]) -> None:
    documented = {client_method(one.id) for one in operations(document)}
    documented |= {name for text in SNIPPETS.values() for name in re.findall(r"client\.(\w+)", text)}
    assert METHODS.keys() - documented == MADE_OF_OTHERS


@pytest.mark.heavy
def test_every_curl_example_succeeds(docs_service: DocsService, examples: list[tuple[Operation, str, str]]) -> None:
    failures = []
    with httpx.Client(timeout=20) as http:
        for operation, line, _ in examples:
            names = {name.upper(): value for name, value in docs_service.values(operation, 0).items()}
            names |= {"URL": docs_service.url, "TOKEN": docs_service.world.token}
            names |= {"WORKER_TOKEN": docs_service.seeds.worker_token}
            run = run_by_curl if operation.id in RUN_BY_CURL else send_parsed
            docs_service.prepare(operation)
            status, text = run(http, line, names, docs_service.folder)
            if status not in ((409,) if operation.id in CONFLICTS else range(200, 300)):
                failures.append((operation.title, status, text))
    assert not failures, "\n".join(map(str, failures))


def run_by_curl(http: httpx.Client, line: str, names: dict[str, str], folder: Path) -> tuple[int, str]:
    quiet = "curl() { command curl -sS -w '\\n%{http_code}' --max-time 20 \"$@\"; }\n"
    line = line.replace(" -OJ", " -o answer")
    command, environment = ["bash", "-c", quiet + line], {"PATH": os.environ["PATH"], **names}
    made = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=30)
    return int(made.stdout.split()[-1]), made.stdout[:300] + made.stderr


def send_parsed(http: httpx.Client, line: str, names: dict[str, str], folder: Path) -> tuple[int, str]:
    """Send the request that curl would send; of an endless answer, read only the head."""
    parts = iter(shlex.split(Template(line.replace("\\\n", "")).substitute(names))[1:])
    method, url, headers, sent = None, "", {}, {}
    for word in parts:
        match word:
            case "-X":
                method = next(parts)
            case "-I":
                method = "HEAD"
            case "-H":
                name, _, value = next(parts).partition(": ")
                headers[name] = value
            case "-d":
                sent["content"] = next(parts).encode()
            case "--data-binary":
                sent["content"] = (folder / next(parts).removeprefix("@")).read_bytes()
            case "-F":
                name, _, path = next(parts).partition("=@")
                sent["files"] = {name: (path, (folder / path).read_bytes())}
            case "-N" | "--fail" | "-OJ":
                pass
            case _:
                assert word.startswith("http"), f"unknown option {word}"
                url = word
    request = http.build_request(method or ("POST" if sent else "GET"), url, headers=headers, **sent)
    answer = http.send(request, stream=True)
    is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    text = "" if is_stream else answer.read()[:300].decode(errors="replace")
    answer.close()
    return answer.status_code, text


class RecordingTransport(httpx.HTTPTransport):
    """Records the method and path of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, str]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append((request.method, request.url.path))
        return super().handle_request(request)


@pytest.mark.heavy
def test_every_python_example_succeeds(
    docs_service: DocsService, examples: list[tuple[Operation, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(docs_service.folder)
    transport, failures = RecordingTransport(), []
    with Client(docs_service.url, docs_service.world.token, transport=transport) as client:
        for operation, _, code in examples:
            values = docs_service.values(operation, 1)
            docs_service.prepare(operation)
            transport.requests.clear()
            with continuous_submissions(client) if operation.id == "stream_jobs" else nullcontext():
                error = run_python(code, docs_service, client, values)
            if not (isinstance(error, ConflictError) if operation.id in CONFLICTS else error is None):
                failures.append((operation.title, code, repr(error)))
            path = requested_path(operation, values)
            if transport.requests and operation.id not in SNIPPETS and (operation.verb, path) not in transport.requests:
                failures.append((operation.title, code, repr(transport.requests)))
    assert not failures, "\n".join(map(str, failures))


def requested_path(operation: Operation, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values[variable(match[1])], operation.path)


def run_python(code: str, docs_service: DocsService, client: Client, values: dict[str, str]) -> Exception | None:
    scope: dict[str, Any] = {
        "client": client,
        "httpx": httpx,
        "Path": Path,
        "url": docs_service.url,
        "headers": {"Authorization": f"Bearer {docs_service.world.token}"},
        "worker_headers": {"Authorization": f"Bearer {docs_service.seeds.worker_token}"},
        "spec": SPEC,
        "print": lambda *_: None,
        **values,
    }
    try:
        exec(code, scope)
    except Exception as error:
        return error
    return None


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
