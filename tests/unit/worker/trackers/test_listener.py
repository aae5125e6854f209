"""Who may use the listener of trackers, and what others cost."""

import base64
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.wait import wait_until
from trainyard.contract.layout import AttemptLayout
from worker.trackers import listener as listener_module
from worker.trackers.listener import TrackerListener
from worker.trackers.mlflow import API
from worker.trackers.tracker_requests import Reporter
from worker.trackers.variables import signature_of, tracker_token

RUN = f"{API}runs/create"
_OTHER_ACCOUNT = """
import os, socket, sys
host, port, local, request = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode()
os.setuid(65534)
with socket.socket() as connection:
    connection.bind(("127.0.0.2", local))
    connection.connect((host, port))
    connection.sendall(request)
    sys.stdout.buffer.write(connection.recv(100))
"""


@pytest.fixture
def connect(listener: TrackerListener) -> Iterator[Callable[[], socket.socket]]:
    port = int(listener.url.rpartition(":")[2])
    with contextlib.ExitStack() as connections:
        yield lambda: connections.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))


def token_of(listener: TrackerListener) -> str:
    return tracker_token(listener.secret, Reporter(1, 0))


def post(listener: TrackerListener, **headers: str) -> httpx.Response:
    own = {"Authorization": f"Bearer {token_of(listener)}"}
    return httpx.post(listener.url + RUN, json={}, headers=own | headers, trust_env=False)


def request_of(listener: TrackerListener, *headers: str) -> bytes:
    lines = [f"POST {RUN} HTTP/1.1", f"Host: {listener.url.removeprefix('http://')}", "Content-Length: 2", *headers]
    return "\r\n".join([*lines, "", "{}"]).encode()


def status(answer: bytes) -> int:
    return int(answer.split()[1])


class TestKey:
    @pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
    def test_client_sends_the_token(self, listener: TrackerListener, scheme: str) -> None:
        value = base64.b64encode(f"api:{token_of(listener)}".encode()).decode()
        headers = {"Authorization": f"Basic {value}" if scheme == "Basic" else f"Bearer {token_of(listener)}"}
        assert httpx.post(listener.url + RUN, json={}, headers=headers, trust_env=False).status_code == 200

    def test_refused_programs_are_stated(self, tmp_path: Path) -> None:
        refused = []
        listener = TrackerListener(lambda request: {}, lambda: refused.append(1))
        listener.start()
        try:
            answer = httpx.post(listener.url + RUN, json={}, headers={"Authorization": "Bearer b"}, trust_env=False)
            assert "`wandb.login(key=...)`" in answer.json()["message"]
            assert refused == [1]
        finally:
            listener.close()

    @pytest.mark.parametrize(
        ("size", "headers", "expected"),
        [(0, {}, 200), (1024**2, {}, 200), (0, {"Origin": "null"}, 403)],
    )
    def test_telemetry_without_the_key_is_read_and_forgotten(
        self, size: int, headers: dict[str, str], expected: int
    ) -> None:
        """W&B's client prints that it failed into the log of the program otherwise."""
        called: list[object] = []
        listener = TrackerListener(lambda request: called.append(request) or {}, lambda: called.append("refused"))
        listener.start()
        try:
            with httpx.Client(trust_env=False) as client:
                url = f"{listener.url}/sdk/otel/v1/metrics"
                # A refusal closes the connection.
                requests = 2 if expected == 200 else 1
                answers = [client.post(url, content=b"x" * size, headers=headers) for _ in range(requests)]
        finally:
            listener.close()
        assert {answer.status_code for answer in answers} == {expected}
        assert (answers[0].content == b"") == (expected == 200)
        assert called == []

    def test_telemetry_is_bounded(self, listener: TrackerListener) -> None:
        host, port = listener.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            head = f"POST /sdk/otel/v1/metrics HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {1024**2 + 1}\r\n\r\n"
            client.sendall(head.encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 411 ")

    @pytest.mark.parametrize("token", ["x", "x.1", "a" * 40, "\u00e4", "0" * 39])
    def test_programs_of_the_same_account_need_it_too(
        self, listener: TrackerListener, layout: AttemptLayout, token: str
    ) -> None:
        headers = {"Authorization": f"Bearer {token}".encode()}
        answer = httpx.post(listener.url + RUN, json={}, headers=headers, trust_env=False)
        assert (answer.status_code, answer.json()["error_code"]) == (401, "UNAUTHENTICATED")
        assert not layout.spool.exists()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
    def test_another_account_with_the_port_of_a_client_is_refused(
        self, listener: TrackerListener, connect: Callable[[], socket.socket]
    ) -> None:
        client = connect()
        client.sendall(request_of(listener, f"Authorization: Bearer {token_of(listener)}"))
        assert status(client.recv(1000)) == 200
        port = int(listener.url.rpartition(":")[2])
        arguments = ["127.0.0.1", str(port), str(client.getsockname()[1]), request_of(listener).decode()]
        done = subprocess.run([sys.executable, "-c", _OTHER_ACCOUNT, *arguments], capture_output=True, check=True)
        assert status(done.stdout) == 401

    def test_refused_request_ends_its_connection_before_its_body_is_read(
        self, listener: TrackerListener, connect: Callable[[], socket.socket]
    ) -> None:
        client = connect()
        client.sendall(request_of(listener).replace(b"Length: 2", b"Length: 99999999"))
        answer = b"".join(iter(lambda: client.recv(1000), b""))
        assert status(answer) == 401


class TestBrowsers:
    @pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", ""])
    def test_other_hosts_are_refused(self, listener: TrackerListener, host: str) -> None:
        answer = post(listener, Host=host)
        assert answer.status_code == 403

    @pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1"])
    def test_requests_of_pages_are_refused(self, listener: TrackerListener, origin: str) -> None:
        answer = post(listener, Origin=origin)
        assert answer.status_code == 403


class TestStrangers:
    def test_idle_connections_delay_no_client(
        self, listener: TrackerListener, connect: Callable[[], socket.socket]
    ) -> None:
        for _ in range(300):
            connect()
        started = time.monotonic()
        for _ in range(5):
            assert post(listener).status_code == 200
        assert time.monotonic() - started < 30, "the strangers' connections wait for a minute"

    def test_the_head_must_arrive_in_time(
        self, listener: TrackerListener, connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener_module, "_HEAD_SECONDS", 0.3)
        slow = connect()

        def ended() -> bool:
            # One byte at a time, each well within the limit of a single read.
            with contextlib.suppress(ConnectionError):
                slow.sendall(b"a")
                slow.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    return slow.recv(1) == b""
                return False
            return True

        wait_until(ended, 20, "the end of the slow connection")

    def test_clients_keep_their_connections(
        self, listener: TrackerListener, connect: Callable[[], socket.socket]
    ) -> None:
        headers = {"Authorization": f"Bearer {token_of(listener)}"}
        with httpx.Client(base_url=listener.url, headers=headers, trust_env=False) as client:
            assert client.post(RUN, json={}).status_code == 200
            for _ in range(100):
                connect()
            (before,) = client._transport._pool.connections  # type: ignore[attr-defined]
            assert client.post(RUN, json={}).status_code == 200
            assert client._transport._pool.connections == [before]  # type: ignore[attr-defined]

    def test_more_connections_than_a_program_needs_are_refused(
        self, listener: TrackerListener, connect: Callable[[], socket.socket]
    ) -> None:
        request = request_of(listener, f"Authorization: Bearer {token_of(listener)}")
        answers = []
        clients = []
        for _ in range(257):
            clients.append(client := connect())
            client.sendall(request)
            answers.append(status(client.recv(1000)))
        assert answers == [200] * 256 + [503]
        clients[0].close()
        wait_until(lambda: _answer(connect(), request) == 200, 20, "room for another client")


def _answer(client: socket.socket, request: bytes) -> int:
    client.sendall(request)
    return status(client.recv(1000))


class TestSignedAddresses:
    def test_only_the_signed_file_can_be_read(self, listener: TrackerListener) -> None:
        path = f"{API}runs/get"
        signed = f"{listener.url}{path}?signature={signature_of(listener.secret, path)}"
        assert httpx.get(signed, trust_env=False).status_code != 401
        assert httpx.post(signed, json={}, trust_env=False).status_code == 401
        assert httpx.get(signed.replace("runs/get", "runs/got"), trust_env=False).status_code == 401
        for signature in ("", "0" * 64, "\u00e4"):
            url = f"{listener.url}{path}?signature={signature}"
            assert httpx.get(url, trust_env=False).status_code == 401
