"""An HTTP proxy, also a reverse one, that passes all requests to one port of this machine, in part, late, or not."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class HttpProxy(ThreadingHTTPServer):
    """Records the targets of all requests."""

    daemon_threads = True

    def __init__(self, port: int, refusals: float, is_cutting: bool, seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self.refusals = refusals
        """Number of requests that are still refused."""
        self.is_cutting = is_cutting
        """Whether bodies of answers lose their second half."""
        self.seconds = seconds
        """How long requests wait before they are passed on."""
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://ada:secret@127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that one of the ends has closed."""


class _Handler(BaseHTTPRequestHandler):
    server: HttpProxy

    def do_CONNECT(self) -> None:
        if self._is_refused():
            return
        with socket.create_connection(("127.0.0.1", self.server.target)) as far:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pass, args=(far, self.connection), daemon=True)
            back.start()
            _pass(self.connection, far)
            back.join()

    def do_GET(self) -> None:
        if self._is_refused():
            return
        url, body = urlsplit(self.path), self.rfile.read(int(self.headers.get("content-length", 0)))
        time.sleep(self.server.seconds)
        far = HTTPConnection("127.0.0.1", self.server.target, timeout=30)
        far.request(self.command, f"{url.path}?{url.query}", body, dict(self.headers.items()))
        answer = far.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        body = answer.read()
        self.wfile.write(body[: len(body) // 2] if self.server.is_cutting else body)
        far.close()

    do_POST = do_GET

    def _is_refused(self) -> bool:
        self.server.requests.append(self.path)
        self.server.refusals -= 1
        if self.server.refusals < 0:
            return False
        self.send_error(403, "this proxy refuses")
        return True

    def log_message(self, *_: object) -> None:
        pass


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def http_proxy(port: int, *, refusals: float = 0, is_cutting: bool = False, seconds: float = 0) -> Iterator[HttpProxy]:
    """Yield a proxy that refuses a number of requests first; `float("inf")` are all."""
    with HttpProxy(port, refusals, is_cutting, seconds) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
