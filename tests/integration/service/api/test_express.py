"""Batches answered at their connection: in every way as the framework answers them, and never lost for being slow."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog
import uvicorn

from service.__main__ import make_protocol
from service.api import middleware, shortcut
from service.api.app import known_hosts
from service.api.connection_limits import protocol
from service.api.express import ROUTE, Express
from service.api.rate_limits import Buckets, Rate
from service.api.shortcut import Exchange, shortened
from service.core.errors import ServiceError, UnavailableError
from tests.support.wait import wait_until
from tests.support.world import FakeWorker, World

POINT = '{"key":"%s","step":%d,"value":1.5,"time":"2026-01-01T00:00:00Z"}'
Head = dict[str, str]


class Counted(Express):
    """Says how many requests it took."""

    taken = 0

    def take(self, exchange: Exchange) -> bool:
        took = super().take(exchange)
        self.taken += took
        return took


class Line:
    """One connection, spoken to in bytes."""

    def __init__(self, port: int, worker: FakeWorker):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._file = self.socket.makefile("rb")
        self._path = f"/v1/attempts/{worker.attempt_id}/metrics"
        self._head = {"Host": "localhost", "Authorization": worker.client.headers["authorization"]}

    def request(self, body: bytes, *, path: str = "", query: str = "", version: str = "1.1", **head: str) -> bytes:
        told = {**self._head, "Content-Length": str(len(body)), **{k.replace("_", "-"): v for k, v in head.items()}}
        lines = [f"POST {path or self._path}{query} HTTP/{version}", *(f"{k}: {v}" for k, v in told.items() if v)]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def answer(self) -> tuple[int, Head, bytes]:
        status = int(self._file.readline().split()[1])
        head: Head = {}
        while (line := self._file.readline()) != b"\r\n":
            name, _, value = line.decode().strip().partition(": ")
            head[name] = value
        return status, head, self._file.read(int(head["content-length"]))

    def ask(self, body: bytes, **how: str) -> tuple[int, Head, Any]:
        self.socket.sendall(self.request(body, **how))
        status, head, text = self.answer()
        return status, head, json.loads(text)


@contextmanager
def served(world: World, express: Express) -> Iterator[int]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    http = protocol(100, 30, shortened(express))
    config = uvicorn.Config(
        world.app, http=http, ws="none", log_level="critical", lifespan="off", proxy_headers=False, server_header=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started, 10, "the server to listen")
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)


class Setting:
    """A server with one worker."""

    def __init__(self, world: World, express: Counted, port: int):
        self.world, self.express, self.port = world, express, port
        self.worker = world.start(world.submit())

    def line(self) -> Line:
        return Line(self.port, self.worker)

    def body(self, key: str = "a", steps: int = 1, **changes: Any) -> bytes:
        points = ",".join(POINT % (key, step) for step in range(1, steps + 1))
        told = {"execution": self.worker.execution, "resumed_from_step": 0, **changes}
        return f'{json.dumps(told)[:-1]},"points":[{points}]}}'.encode()


@pytest.fixture
def setting(world: World) -> Iterator[Setting]:
    express = Counted(world.services, known_hosts(world.settings))
    with served(world, express) as port:
        found = Setting(world, express, port)
        assert found.line().ask(found.body("first"))[0] == 200
        assert express.taken == 0, "the first says who the worker is"
        yield found


def test_a_batch_is_stored_and_counted_as_by_the_framework(setting: Setting) -> None:
    line, counts = setting.line(), setting.world.services.metrics
    status, head, told = line.ask(setting.body("b", 3))
    again = line.ask(setting.body("b", 4))
    assert (status, told, again[2]) == (200, {"accepted": 3, "duplicates": 0}, {"accepted": 1, "duplicates": 3})
    assert setting.express.taken == 2
    slow = line.ask(setting.body("b", 3), X_Odd="1")
    assert setting.express.taken == 2, "the framework's"
    changing = ("x-request-id", "ratelimit-remaining")
    assert {k: v for k, v in head.items() if k not in changing} == {
        k: v for k, v in slow[1].items() if k not in changing
    }
    assert int(slow[1]["ratelimit-remaining"]) == int(head["ratelimit-remaining"]) - 2
    assert head["x-request-id"].startswith("req_")
    assert line.ask(setting.body("b"), X_Request_ID="mine")[1]["x-request-id"] == "mine"
    text = counts.render({}, 0, None).decode()
    assert f'trainyard_http_request_seconds_count{{method="POST",route="{ROUTE}",status="200"}} 5.0' in text
    assert 'trainyard_ingested_total{kind="points"} 12.0' in text


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"execution": 9}, 409, "stale_execution"),
        ({"execution": "x"}, 422, "invalid_value"),
        (None, 422, "invalid_value"),
    ],
)
def test_a_refusal_is_the_frameworks(setting: Setting, changes: Any, status: int, code: str) -> None:
    body = b"{" if changes is None else setting.body(**changes)
    quick, slow = setting.line().ask(body), setting.line().ask(body, X_Odd="1")
    assert (quick[0], quick[2]["error"]["code"]) == (status, code)
    assert quick[2] == slow[2]
    assert quick[1].keys() == slow[1].keys()


HEADS: list[tuple[dict[str, str], int]] = [
    ({"Host": "elsewhere"}, 400),
    ({"Authorization": ""}, 401),
    ({"Authorization": "Bearer tyw_0000000000000000_" + "x" * 43}, 401),
    ({"Cookie": "a=b"}, 403),
    ({"Content_Encoding": "gzip"}, 400),
    ({"Content_Length": "9999999"}, 413),
    ({"query": "?a=1"}, 422),
    ({"query": "?a=%00"}, 422),
    ({"path": "/v1/attempts/0123456789abcdef/metrics"}, 403),
    ({"path": "/v1/attempts/0123456789abcdex/metrics"}, 404),
    ({"path": "/v1/attempts/0123456789abcdef/metrics/"}, 404),
    ({"path": "/v1/attempts/0123456789abcdef/metric"}, 404),
]


@pytest.mark.parametrize(("head", "status"), HEADS, ids=[str(head) for head, _ in HEADS])
def test_what_the_gate_refuses_is_refused(setting: Setting, head: dict[str, str], status: int) -> None:
    answer = setting.line().ask(setting.body(), **head)
    assert answer[0] == status, answer
    assert setting.express.taken == 0
    assert answer[1]["x-content-type-options"] == "nosniff"


def test_an_empty_bucket_is_a_429_that_says_when(setting: Setting) -> None:
    setting.world.services.worker_buckets = Buckets(Rate(1.0, 3))
    line = setting.line()
    for _ in range(3):
        status, head, _ = line.ask(setting.body())
        assert status == 200
    assert head["ratelimit-remaining"] == "0"
    status, head, told = line.ask(setting.body())
    assert (status, told["error"]["code"], head["retry-after"]) == (429, "rate_limited", "1")


def test_a_token_is_looked_up_again_after_a_while(setting: Setting) -> None:
    line = setting.line()
    line.ask(setting.body())
    setting.world.clock.advance(11)
    line.ask(setting.body())
    assert setting.express.taken == 1
    line.ask(setting.body())
    assert setting.express.taken == 2


def failing(error: ServiceError) -> Callable[..., Any]:
    def write(*_: Any) -> Any:
        raise error

    return write


def test_without_the_database_it_is_a_503_with_a_line_in_the_log(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = UnavailableError("the database does not answer", code="database")
    monkeypatch.setattr(setting.world.services.points._writers[0], "write", failing(error))
    with structlog.testing.capture_logs() as lines:
        status, head, told = setting.line().ask(setting.body(), X_Request_ID="mine")
        assert (status, told["error"]["code"], head["retry-after"]) == (503, "database", "2")
        wait_until(lambda: any(line["event"] == "request" for line in lines), 5, "the line")
    (line,) = [line for line in lines if line["event"] == "request"]
    assert (line["request_id"], line["status"], line["log_level"]) == ("mine", 503, "error")


def test_a_full_line_is_a_429(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting.world.services.points, "_limit", 10)
    monkeypatch.setattr(setting.world.services.points, "_bytes", 1)
    status, head, told = setting.line().ask(setting.body())
    assert (status, told["error"]["code"], head["retry-after"]) == (429, "too_many_requests", "1")
    assert setting.express.taken == 1


def test_a_body_may_come_in_pieces_and_be_large(setting: Setting) -> None:
    line = setting.line()
    whole = line.request(setting.body("long" * 30, 1000))
    assert len(whole) > 150_000
    for start in range(0, len(whole), 50_000):
        line.socket.sendall(whole[start : start + 50_000])
    assert json.loads(line.answer()[2]) == {"accepted": 1000, "duplicates": 0}


def test_a_slow_body_is_waited_for_and_one_that_stops_is_refused(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortcut, "HOLD_SECONDS", 0.01)
    for size, status, patience in ((0, 200, 30.0), (1, 408, 0.3)):
        monkeypatch.setattr(middleware, "_BODY_SECONDS", patience)
        line = setting.line()
        whole = line.request(setting.body())
        line.socket.sendall(whole[:-20])
        let_go = threading.Event()
        threading.Timer(0.1, let_go.set).start()
        let_go.wait(5)
        if not size:
            line.socket.sendall(whole[-20:])
        assert line.answer()[0] == status
    assert setting.express.taken == 0


def test_requests_in_one_piece_are_answered_in_their_order(setting: Setting) -> None:
    line = setting.line()
    asked = [line.request(setting.body("p", steps)) for steps in (1, 3, 2)]
    line.socket.sendall(b"".join(asked))
    told = [json.loads(line.answer()[2]) for _ in asked]
    assert told == [
        {"accepted": 1, "duplicates": 0},
        {"accepted": 2, "duplicates": 1},
        {"accepted": 0, "duplicates": 2},
    ]


@pytest.mark.parametrize("how", [{"version": "1.0"}, {"Connection": "close"}], ids=["old", "close"])
def test_a_connection_that_is_to_end_ends_with_its_answer(setting: Setting, how: dict[str, str]) -> None:
    line = setting.line()
    status, head, _ = line.ask(setting.body(), **how)
    assert (status, head["connection"], setting.express.taken) == (200, "close", 1)
    assert line.socket.recv(1) == b""


def test_who_leaves_before_the_answer_harms_nobody(setting: Setting) -> None:
    for cut in (None, -5):
        line = setting.line()
        line.socket.sendall(line.request(setting.body("gone"))[:cut])
        line.socket.close()
    assert setting.line().ask(setting.body("after"))[2] == {"accepted": 1, "duplicates": 0}


def test_the_service_uses_it(world: World) -> None:
    assert isinstance(make_protocol(world.services).shortcut, Express)
