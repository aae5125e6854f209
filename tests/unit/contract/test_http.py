"""Who answered a request, by which proxy, and which certificate authorities a client and a worker trust."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import patch

import certifi
import httpx
import pytest

from tests.support.http_proxy import http_proxy
from tests.support.receiver import self_signed
from trainyard.cli.doctor import _check_service
from trainyard.client import AsyncClient, Client, TrainyardError
from trainyard.contract.http import API_HEADER, API_VERSION, describe_foreign, describe_tls_error, trust
from trainyard.demo import free_port
from worker.reporting.service_client import ServiceClient, UnavailableError

URL = "https://yard.example"
ONLY_BY_PROXY = "http://yard.invalid"
ALL = float("inf")


@pytest.mark.parametrize(
    ("status", "headers", "cause"),
    [
        (413, {"Server": "nginx/1.22.1"}, "(Server: nginx/1.22.1) with 413: a proxy limits the size of requests"),
        (502, {}, "with 502: a proxy does not reach the service"),
        (504, {}, "has not received an answer of the service in time"),
        (418, {}, "with 418: a proxy, or another program, answers there"),
        (307, {"Location": "https://sso.example/login"}, "it redirects to https://sso.example/login"),
        (200, {}, "the sign-in page of a network"),
    ],
)
def test_likely_cause_is_named_by_status(status: int, headers: dict[str, str], cause: str) -> None:
    request = httpx.Request("POST", "http://ada:secret@yard.example/v1/jobs?token=secret")
    text = describe_foreign(httpx.Response(status, headers=headers, text="<html>", request=request))
    assert text.startswith("http://yard.example/v1/jobs was answered by something other than Trainyard")
    assert cause in text
    assert "secret" not in text


def test_untrusted_certificate_names_the_files_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/site/ca.pem")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    error = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate")
    text = describe_tls_error(error) or ""
    assert "the trusted authorities are SSL_CERT_FILE=/site/ca.pem and those of this machine" in text
    assert "TRAINYARD_WORKER_CA_FILE" in text
    assert describe_tls_error(httpx.ConnectError("[Errno 111] Connection refused")) is None


def test_configured_ca_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, end = (
        Path(certifi.where()).read_text().split("-----END CERTIFICATE-----", 1)[0],
        "-----END CERTIFICATE-----\n",
    )
    own = tmp_path / "own.pem"
    own.write_text(first[first.index("-----BEGIN") :] + end)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    assert len(trust(URL).get_ca_certs()) == 1


def test_public_cas_are_trusted_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert len(trust(URL).get_ca_certs()) > 50


@pytest.mark.parametrize(("scheme", "times"), [("http", 0), ("https", 1)])
def test_authorities_are_read_only_for_tls(scheme: str, times: int) -> None:
    with patch("ssl.create_default_context", wraps=ssl.create_default_context) as read:
        ServiceClient(f"{scheme}://yard.example", "a1", "token").close()
    assert read.call_count == times


class Service(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        # An address of this machine that is none of loopback.
        self.url = f"http://0.0.0.0:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header(API_HEADER, API_VERSION)
        body = b'{"object": "diagnostics", "findings": []}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def request_from_worker(url: str, times: int) -> None:
    client = ServiceClient(url, "a1", "token", sleep=lambda seconds: None, now=iter(range(100)).__next__)
    for _ in range(times):
        client.post_until(60, "claim", "{}")
    client.close()


def request_from_client(url: str, times: int) -> None:
    with Client(url, "token", sleep=lambda seconds: None) as client:
        for _ in range(times):
            client.doctor()


def request_from_async_client(url: str, times: int) -> None:
    async def request() -> None:
        async with AsyncClient(url, "token", sleep=asyncio.sleep) as client:
            for _ in range(times):
                await client.doctor()

    asyncio.run(request())


Side = Callable[[str, int], None]
every_side = pytest.mark.parametrize("send", [request_from_worker, request_from_client, request_from_async_client])


@every_side
@pytest.mark.parametrize("is_cutting", [False, True])
def test_service_is_reached_past_a_broken_proxy(send: Side, service: Service, monkeypatch, is_cutting: bool) -> None:
    with http_proxy(service.server_port, refusals=0 if is_cutting else ALL, is_cutting=is_cutting) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        send(service.url, 3)
    assert len(proxy.requests) == 1


@every_side
def test_service_is_reached_past_a_proxy_that_is_down(send: Side, service: Service, monkeypatch) -> None:
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{free_port()}")
    send(service.url, 1)


@every_side
def test_service_is_reached_by_the_proxy_alone(send: Side, service: Service, monkeypatch) -> None:
    with http_proxy(service.server_port, refusals=1) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        send(ONLY_BY_PROXY, 3)
    assert len(proxy.requests) == 4


@every_side
@pytest.mark.parametrize("no_proxy", ["0.0.0.0", "*", None])
def test_proxy_is_left_out(send: Side, service: Service, monkeypatch, no_proxy: str | None) -> None:
    with http_proxy(service.server_port) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        if no_proxy:
            monkeypatch.setenv("NO_PROXY", no_proxy)
        send(service.url if no_proxy else f"http://127.0.0.1:{service.server_port}", 1)
    assert proxy.requests == []


@every_side
def test_proxy_passes_tls_on(send: Side, service: Service, monkeypatch, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "yard.invalid")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    service.socket = context.wrap_socket(service.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with http_proxy(service.server_port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        send("https://yard.invalid", 2)
    assert set(proxy.requests) == {"yard.invalid:443"}


@every_side
def test_errors_name_the_proxy_without_its_password(send: Side, service: Service, monkeypatch) -> None:
    with http_proxy(service.server_port, refusals=ALL) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with pytest.raises((UnavailableError, TrainyardError)) as caught:
            send(ONLY_BY_PROXY, 1)
    assert f"by the proxy http://127.0.0.1:{proxy.server_port}" in str(caught.value)
    assert "directly" in str(caught.value)
    assert "something other than Trainyard" in str(caught.value)
    assert "secret" not in str(caught.value)


@every_side
@pytest.mark.parametrize("address", ["http://host:port", "ftp://host", "socks5h://ada:secret@host"])
def test_unusable_proxy_is_named_and_left_out(send: Side, service: Service, monkeypatch, caplog, address: str) -> None:
    monkeypatch.setenv("ALL_PROXY", address)
    with patch("trainyard.contract.http.find_spec", return_value=None):
        send(service.url, 1)
    assert "go directly" in caplog.text
    assert "secret" not in caplog.text


def test_worker_probes_the_service_by_both_ways(service: Service, monkeypatch) -> None:
    with http_proxy(service.server_port, refusals=1) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        client = ServiceClient(ONLY_BY_PROXY, "a1", "token")
        with pytest.raises(UnavailableError, match="answered by something other than Trainyard"):
            client.post("claim", "{}")
        assert client.is_reached()
        client.close()


@pytest.mark.parametrize("refusals", [ALL, 0])
def test_doctor_checks_both_ways(service: Service, monkeypatch, refusals: float) -> None:
    with http_proxy(service.server_port, refusals=refusals) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with Client(service.url if refusals else ONLY_BY_PROXY, "token") as client:
            assert next(_check_service(client)).state == "ok"
    assert len(proxy.requests) == 1
