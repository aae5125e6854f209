"""`python -m bench._answers SECONDS`: a service that answers each POST so many seconds later; prints its port."""

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answer(BaseHTTPRequestHandler):
    """Yes, to everything."""

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


if __name__ == "__main__":
    Answer.delay = float(sys.argv[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        print(server.server_address[1], flush=True)
        server.serve_forever()
