"""An HTTP or HTTPS server that receives webhook messages and responds as the test requires."""

import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@dataclass
class Received:
    """A received message."""

    path: str
    headers: dict[str, str]
    body: str


@dataclass
class Receiver:
    """The received messages, and the responses to send."""

    port: int
    messages: list[Received] = field(default_factory=list)
    status: int = 200
    location: str | None = None
    answer: bytes = b""
    seconds: float = 0.0
    """Seconds over which a response is sent in parts."""


@contextmanager
def receiver(certificate: tuple[Path, Path] | None = None) -> Iterator[Receiver]:
    """Run a receiver on a port of 127.0.0.1; with a certificate and its key, over TLS."""
    made: list[Receiver] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiving = made[0]
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            receiving.messages.append(Received(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(receiving.status)
            if receiving.location:
                self.send_header("location", receiving.location)
            self.end_headers()
            until = time.monotonic() + receiving.seconds
            try:
                self.wfile.write(receiving.answer)
                while time.monotonic() < until:
                    self.wfile.write(b".")
                    self.wfile.flush()
                    time.sleep(0.05)
            except OSError:
                return

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    made.append(Receiver(server.server_address[1]))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made[0]
    finally:
        server.shutdown()
        server.server_close()


def self_signed(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a self-signed certificate; return its path and that of its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed, and makes the certificate of this test")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    paths = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, "req", "-x509", *kind, *subject, *paths], check=True, capture_output=True)
    return certificate, key
