"""The HTTP server on 127.0.0.1 of a node to which the trackers of the job's program report."""

import base64
import contextlib
import hmac
import io
import json
import logging
import math
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from worker.trackers.tracker_requests import Reporter, TrackerError, TrackerRequest
from worker.trackers.variables import SECRET_BYTES, parse_token, signature_of

log = logging.getLogger(__name__)

Api = Callable[[TrackerRequest], dict[str, Any] | Path]
"""Carries out a request; a path is answered by the file's content."""

REFUSED = (
    "the trackers of this job need the key that Trainyard sets in the environment; remove from the program "
    "`wandb.login(key=...)`, and what sets WANDB_API_KEY, MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_USERNAME or "
    "MLFLOW_TRACKING_PASSWORD"
)
_TELEMETRY = "/sdk/otel/"
"""The paths of W&B's telemetry, which its client sends without a key."""
_HEAD_SECONDS = 5.0
"""Seconds within which a client must send the head of its first request, which has the key."""
_REQUEST_SECONDS = 60.0
_MAX_STRANGERS = 64
"""Maximum connections that have not sent a key. A further connection replaces the oldest."""
_MAX_CLIENTS = 256
"""Maximum connections with the key of the job."""
_MAX_TELEMETRY = 1024**2
_MAX_BODY = 1024**4
"""Artifacts are written, or left out, as they arrive; each API limits the bytes that it reads at once."""


class TrackerListener:
    """Serves the APIs of all trackers. The port is bound at construction; threads begin with `start`."""

    def __init__(self, api: Api, on_refused: Callable[[], None]) -> None:
        """
        Args:
            on_refused: Called after a request without the job's key.
        """
        self.secret = secrets.token_hex(SECRET_BYTES)
        """The secret of this attempt; with execution and rank it is a token."""
        self._server = _Server(api, self.secret, on_refused)
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


class _Strangers:
    """The connections whose clients have not proved that they belong to the job, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, None] = {}

    def add(self, connection: socket.socket) -> None:
        """Add a connection; where there are too many, the oldest ends."""
        with self._lock:
            oldest = next(iter(self._connections)) if len(self._connections) >= _MAX_STRANGERS else None
            if oldest is not None:
                del self._connections[oldest]
            self._connections[connection] = None
        if oldest is not None:
            # Its thread notices, and closes it.
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.pop(connection, None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, api: Api, secret: str, on_refused: Callable[[], None]) -> None:
        self.api = api
        self.on_refused = on_refused
        self.secret = secret
        self.strangers = _Strangers()
        self.room_for_clients = threading.Semaphore(_MAX_CLIENTS)
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hosts = {f"{name}:{self.server_address[1]}" for name in ("127.0.0.1", "localhost")}

    def process_request(self, request: Any, client_address: Any) -> None:
        self.strangers.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.strangers.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection of a tracker broke", exc_info=True)


class _Incoming(io.RawIOBase):
    """The bytes that a client sends, up to a deadline that applies to all reads together."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.deadline = time.monotonic() + _HEAD_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client has sent no request with the job's key")
        self._connection.settimeout(min(left, _REQUEST_SECONDS))
        received = self._connection.recv_into(buffer)
        self._connection.settimeout(_REQUEST_SECONDS)
        return received


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _REQUEST_SECONDS
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._incoming = _Incoming(self.connection)
        self.rfile = io.BufferedReader(self._incoming)
        self._is_client = False

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            if self._is_client:
                self.server.room_for_clients.release()

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _serve(self) -> None:
        response: dict[str, Any] | Path | None
        try:
            request = self._request()
            status, response = 200, None if request is None else self.server.api(request)
        except TrackerError as error:
            status, response = error.status, error.document()
        except OSError as error:
            log.warning("what a tracker reported cannot be stored: %s", error)
            status, response = 500, TrackerError(500, "INTERNAL_ERROR", f"cannot be stored: {error}").document()
        except Exception:
            log.exception("a request of a tracker failed")
            status, response = 500, TrackerError(500, "INTERNAL_ERROR", "Trainyard's listener failed").document()
        self.close_connection = self.close_connection or status != 200
        if response is None:
            self._send(status, "application/x-protobuf", 0)
        elif isinstance(response, Path):
            with response.open("rb") as file:
                self._send(status, "application/octet-stream", os.fstat(file.fileno()).st_size)
                shutil.copyfileobj(file, self.wfile)
        else:
            content = json.dumps(response).encode()
            self._send(status, "application/json", len(content))
            self.wfile.write(content)

    def _send(self, status: int, kind: str, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _request(self) -> TrackerRequest | None:
        """Return the request of an authenticated client; None for telemetry, which is read and forgotten.

        Raises:
            TrackerError: It is not authenticated, or its body has no valid length.
        """
        if self.headers.get("Host", "") not in self.server.hosts or "Origin" in self.headers:
            raise TrackerError(403, "PERMISSION_DENIED", "this listener is for programs on the same machine")
        url = urlsplit(self.path)
        if url.path.startswith(_TELEMETRY):
            # W&B's client sends telemetry without the key, so the connection still counts as a stranger's.
            self.rfile.read(self._length(_MAX_TELEMETRY))
            return None
        reporter = self._reporter()
        self._count_as_client()
        length = self._length(_MAX_BODY)
        query = dict(parse_qsl(url.query, max_num_fields=100))
        encoding = self.headers.get("Content-Encoding", "")
        return TrackerRequest(self.command, url.path, query, reporter, self.rfile, length, encoding)

    def _length(self, limit: int) -> int:
        text = self.headers.get("Content-Length", "0")
        if not text.isdigit() or int(text) > limit or "Transfer-Encoding" in self.headers:
            raise TrackerError(411, "BAD_REQUEST", f"Content-Length must be a number up to {limit}")
        return int(text)

    def _reporter(self) -> Reporter:
        """Return the rank that sends the request; rank 0 for a client that reads a file by its signed address.

        Raises:
            TrackerError: The request has no token of this attempt.
        """
        scheme, _, value = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            with contextlib.suppress(ValueError):
                value = base64.b64decode(value).decode().partition(":")[2]
        url = urlsplit(self.path)
        signature = dict(parse_qsl(url.query, max_num_fields=100)).get("signature", "")
        expected = signature_of(self.server.secret, url.path)
        if self.command == "GET" and hmac.compare_digest(signature.encode(), expected.encode()):
            return Reporter(0, 0)
        token = parse_token(value.strip())
        if token and hmac.compare_digest(token[0], self.server.secret):
            return token[1]
        self.server.on_refused()
        raise TrackerError(401, "UNAUTHENTICATED", REFUSED)

    def _count_as_client(self) -> None:
        if self._is_client:
            return
        if not self.server.room_for_clients.acquire(blocking=False):
            message = f"the program has {_MAX_CLIENTS} connections to its trackers; close some"
            raise TrackerError(503, "TEMPORARILY_UNAVAILABLE", message)
        self._is_client = True
        self.server.strangers.remove(self.connection)
        self._incoming.deadline = math.inf

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
