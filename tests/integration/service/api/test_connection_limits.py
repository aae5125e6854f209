"""Limits of connections on a real server: slow ones, too many, and the headers of every answer."""

import socket
from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from service.api.connection_table import ConnectionTable
from service.api.middleware import body
from tests.support.raw_http import served_with_limits as served
from tests.support.wait import wait_until
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")


def is_closed(connection: socket.socket) -> bool:
    """Waits for the other side to close it, or for five seconds."""
    connection.settimeout(5)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_case_25_connection_without_a_request_is_closed(world: World) -> None:
    with served(world) as port:
        idle = socket.create_connection(("127.0.0.1", port))
        partial = socket.create_connection(("127.0.0.1", port))
        partial.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ")
        with httpx.Client(base_url=f"http://localhost:{port}") as quick:
            assert quick.get("/livez").status_code == 200
        assert is_closed(idle)
        assert is_closed(partial)


def slow_request(world: World, port: int) -> socket.socket:
    """A connection with a request in progress, whose body does not come."""
    connection = socket.create_connection(("127.0.0.1", port))
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {world.token}\r\n"
    connection.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
    return connection


def test_case_25_connections_over_the_limit_are_closed(world: World) -> None:
    with served(world, limit=2, seconds=30) as port:
        connections = [slow_request(world, port) for _ in range(2)]
        wait_until(lambda: is_closed(socket.create_connection(("127.0.0.1", port))), 10, "both requests to be read")
        for connection in connections:
            connection.close()

        def is_open() -> bool:
            try:
                return httpx.get(f"http://localhost:{port}/livez").status_code == 200
            except httpx.HTTPError:
                return False

        wait_until(is_open, 10, "room for another connection")


def test_idle_connections_do_not_exclude_other_clients(world: World) -> None:
    with served(world, limit=50, seconds=30) as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        with httpx.Client(base_url=f"http://localhost:{port}") as client:
            for _ in range(3):
                assert client.get("/livez").status_code == 200
        assert is_closed(idle[0])
        idle[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle[-1].recv(1024).startswith(b"HTTP/1.1 200 ")


class TestConnectionTable:
    def test_one_address_has_a_limit(self) -> None:
        table = ConnectionTable(100, 2, [])
        assert [table.admit("192.0.2.1", number) for number in (1, 2, 3)] == [True, True, False]
        assert table.admit("192.0.2.2", 4)
        table.forget("192.0.2.1")
        table.forget("192.0.2.1")
        assert table.admit("192.0.2.1", 3)

    def test_ipv6_network_has_the_limit_of_one_address(self) -> None:
        table = ConnectionTable(100, 1, [])
        assert table.admit("2001:db8::1", 1)
        assert not table.admit("2001:db8::2", 2)
        assert table.admit("2001:db8:0:1::1", 3)
        assert [table.admit(f"::ffff:192.0.2.{number}", 4) for number in (1, 2, 1)] == [True, True, False]

    def test_loopback_and_trusted_proxies_have_no_limit_of_an_address(self) -> None:
        table = ConnectionTable(100, 1, [ip_network("10.0.0.0/8")])
        for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3", ""):
            assert all(table.admit(address, number) for number in range(5)), address

    def test_full_table_without_idle_connections_admits_none(self) -> None:
        assert not ConnectionTable(1, 10, []).admit("192.0.2.1", 2)


def test_case_25_slow_body_is_rejected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_BODY_SECONDS", 0.3)
    with served(world) as port:
        connection = socket.create_connection(("127.0.0.1", port))
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {world.token}\r\n"
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        connection.settimeout(5)
        answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"request_timeout" in answer or b"request_timeout" in connection.recv(4096)


POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"


CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"


@pytest.mark.parametrize(
    ("begin", "endless"),
    [(POST, b"X-%d: y\r\n"), (POST + b"X: ", b"%d"), (CHUNKED, b"X-%d: y\r\n")],
    ids=["headers", "one header", "trailers"],
)
def test_endless_request_head_is_not_buffered(world: World, begin: bytes, endless: bytes) -> None:
    with served(world, seconds=30) as port:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.settimeout(10)
        connection.sendall(begin)
        sent = 0
        with pytest.raises(ConnectionError):  # noqa: PT012
            while sent < 50_000_000:
                chunk = b"".join(endless % number for number in range(1000))
                connection.sendall(chunk)
                sent += len(chunk)
        assert sent < 20_000_000, "no more than the buffers of the sockets"


def test_body_of_an_upgrade_request_is_read(world: World) -> None:
    with served(world, seconds=30) as port:
        headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "Authorization": f"Bearer {world.token}"}
        assert httpx.post(f"http://localhost:{port}/v1/jobs", json=SPEC, headers=headers).status_code == 201


def test_valid_request_id_of_the_client_is_returned(world: World) -> None:
    for given, accepted in (("abc-1_2", True), ("a b", False), ("x" * 65, False), ("<script>", False), ("", False)):
        answer = world.client.get("/livez", headers={"X-Request-ID": given})
        assert (answer.headers["x-request-id"] == given) is accepted, given
        assert accepted or answer.headers["x-request-id"].startswith("req_")
    for answer in (world.client.get("/nope"), world.new_client(None).get("/v1/jobs")):
        assert answer.headers["x-request-id"].startswith("req_")


def test_forwarded_address_requires_a_trusted_proxy(database_url: str, tmp_path: Path) -> None:
    for proxies, expected in (("", "10.0.0.9"), ("10.0.0.0/8", "198.51.100.7")):
        world = World(database_url, tmp_path / f"state{len(proxies)}", trusted_proxies=proxies)
        headers = {"Authorization": f"Bearer {world.token}", "X-Forwarded-For": "203.0.113.1, 198.51.100.7"}
        behind = TestClient(world.app, base_url="http://localhost", headers=headers, client=("10.0.0.9", 5))
        assert behind.post("/v1/jobs", json=SPEC).status_code == 201
        assert behind.get("/v1/audit?limit=1").json()["data"][0]["address"] == expected
        world.database.dispose()
