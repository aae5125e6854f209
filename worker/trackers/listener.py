"""The HTTP server on 127.0.0.1 of a node to which the trackers of the job's program report."""

import hmac
import json
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from worker.trackers.answers import TrackerError, TrackerRequest

log = logging.getLogger(__name__)

Api = Callable[[TrackerRequest], dict[str, Any]]

_REQUEST_SECONDS = 60.0
_MAX_CONNECTIONS = 256
_MAX_BODY = 1024**3


class TrackerListener:
    """Serves one API. The port is bound at construction, before torchrun is started; threads begin with `start`."""

    def __init__(self, api: Api) -> None:
        self.secret = secrets.token_hex(20)
        """The secret of this attempt; with an execution it is a token."""
        self._server = _Server(api, self.secret)
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

    def __init__(self, api: Api, secret: str) -> None:
        self.api = api
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
        try:
            request = self._request()
            status, document = 200, self.server.api(request)
        except TrackerError as error:
            status, document = error.status, error.document()
            self.close_connection = True
        except OSError as error:
            log.warning("what a tracker reported cannot be stored: %s", error)
            status, document = 500, TrackerError(500, "INTERNAL_ERROR", f"cannot be stored: {error}").document()
            self.close_connection = True
        except Exception:
            log.exception("a request of a tracker failed")
            status, document = 500, TrackerError(500, "INTERNAL_ERROR", "Trainyard's listener failed").document()
            self.close_connection = True
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _request(self) -> TrackerRequest:
        """Return the request of an authenticated client.

        Raises:
            TrackerError: It is not authenticated, or its body has no valid length.
        """
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        secret, _, execution = given.partition(".")
        if not hmac.compare_digest(secret.encode(), self.server.secret.encode()) or not execution.isdigit():
            message = "this listener is for the program of one Trainyard job; MLFLOW_TRACKING_TOKEN is not the job's"
            raise TrackerError(401, "UNAUTHENTICATED", message)
        text = self.headers.get("Content-Length", "0")
        if not text.isdigit() or int(text) > _MAX_BODY or "Transfer-Encoding" in self.headers:
            raise TrackerError(411, "BAD_REQUEST", f"Content-Length must be a number up to {_MAX_BODY}")
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, max_num_fields=100))
        return TrackerRequest(self.command, url.path, query, int(execution), self.rfile, int(text))

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
