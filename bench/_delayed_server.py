"""`python -m bench._delayed_server SECONDS`: an HTTP server that delays each response; prints its port."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class DelayedHandler(BaseHTTPRequestHandler):
    """Respond with 200 to every POST after `delay` seconds."""

    protocol_version = "HTTP/1.1"
    delay = 0.0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.delay)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def delayed_server(delay: float) -> Iterator[str]:
    """Run the server in another process; yields its URL."""
    command = [sys.executable, "-m", "bench._delayed_server", str(delay)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    DelayedHandler.delay = float(sys.argv[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), DelayedHandler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        print(server.server_address[1], flush=True)
        server.serve_forever()
