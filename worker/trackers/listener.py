"""The HTTP server on 127.0.0.1 of a node to which the trackers of the job's program report."""

import base64
import contextlib
import hmac
import json
import logging
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from worker.trackers.answers import Reporter, TrackerError, TrackerRequest
from worker.trackers.variables import SECRET_BYTES, parse_token

log = logging.getLogger(__name__)

Api = Callable[[TrackerRequest], dict[str, Any] | Path]
"""Carries out a request; a path is answered by the file's content."""

_REQUEST_SECONDS = 60.0
_MAX_CONNECTIONS = 256
_MAX_BODY = 1024**4
"""Artifacts are written, or left out, as they arrive; each API limits what it reads at once."""


class TrackerListener:
    """Serves the APIs of all trackers. The port is bound at construction; threads begin with `start`."""

    def __init__(self, api: Api, current_execution: Callable[[], int]) -> None:
        self.secret = secrets.token_hex(SECRET_BYTES)
        """The secret of this attempt; with execution and rank it is a token."""
        self._server = _Server(api, self.secret, current_execution)
        self._thread = threading.Thread(target=self._server.serve_forever, name="tracker-listener", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, api: Api, secret: str, current_execution: Callable[[], int]) -> None:
        self.api = api
        self.current_execution = current_execution
        self.secret = secret
        self._room = threading.Semaphore(_MAX_CONNECTIONS)
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._room.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection of a tracker broke", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _REQUEST_SECONDS
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _serve(self) -> None:
        answer: dict[str, Any] | Path
        try:
            status, answer = 200, self.server.api(self._request())
        except TrackerError as error:
            status, answer = error.status, error.document()
        except OSError as error:
            log.warning("what a tracker reported cannot be stored: %s", error)
            status, answer = 500, TrackerError(500, "INTERNAL_ERROR", f"cannot be stored: {error}").document()
        except Exception:
            log.exception("a request of a tracker failed")
            status, answer = 500, TrackerError(500, "INTERNAL_ERROR", "Trainyard's listener failed").document()
        self.close_connection = self.close_connection or status != 200
        if isinstance(answer, Path):
            with answer.open("rb") as file:
                self._send(status, "application/octet-stream", os.fstat(file.fileno()).st_size)
                shutil.copyfileobj(file, self.wfile)
        else:
            content = json.dumps(answer).encode()
            self._send(status, "application/json", len(content))
            self.wfile.write(content)

    def _send(self, status: int, kind: str, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _request(self) -> TrackerRequest:
        """Return the request of an authenticated client.

        Raises:
            TrackerError: It is not authenticated, or its body has no valid length.
        """
        reporter = self._reporter()
        text = self.headers.get("Content-Length", "0")
        if not text.isdigit() or int(text) > _MAX_BODY or "Transfer-Encoding" in self.headers:
            raise TrackerError(411, "BAD_REQUEST", f"Content-Length must be a number up to {_MAX_BODY}")
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, max_num_fields=100))
        encoding = self.headers.get("Content-Encoding", "")
        return TrackerRequest(self.command, url.path, query, reporter, self.rfile, int(text), encoding)

    def _reporter(self) -> Reporter:
        """Return the rank that sends the request. A program of this user that has another key is rank 0.

        Raises:
            TrackerError: The client is none of the job's program.
        """
        given = self.headers.get("Authorization", "")
        scheme, _, value = given.partition(" ")
        if scheme == "Basic":
            with contextlib.suppress(ValueError):
                value = base64.b64decode(value).decode().partition(":")[2]
        token = parse_token(value.strip())
        if token and hmac.compare_digest(token[0], self.server.secret):
            return token[1]
        if _is_of_this_user(self.client_address, self.server.server_address):
            return Reporter(self.server.current_execution(), 0)
        message = "this listener is for the program of one Trainyard job; the key of this request is not the job's"
        raise TrackerError(401, "UNAUTHENTICATED", message)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def _is_of_this_user(client: tuple[str, int], server: Any) -> bool:
    """Whether the other end of a connection on this node belongs to this user, by the kernel's table of connections."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            local, remote = fields[1].partition(":")[2], fields[2].partition(":")[2]
            if (int(local, 16), int(remote, 16)) == (client[1], server[1]):
                return int(fields[7]) == os.getuid()
    return False
