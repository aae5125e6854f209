"""`python -m bench.reporting`: what reporting costs the thread that trains, whatever the service does.

A loop of matrix products stands for training steps of about 10 ms. It runs without reporting and with a report of ten
values after every ten steps (the default), to a real HTTP server that answers at once, answers each request after 30
seconds, or is not there; in turns, so that what else the machine does falls on all alike. Told are the time of one call
and the change of the step's time.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

import torch

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.reports import Progress
from worker.reporter import SpoolReporter
from worker.service_client import ServiceClient
from worker.spool_sender import SpoolSender

CALL_SECONDS = 100e-6
STEP_CHANGE = 0.01
VALUES = {f"train/value_{number}": 0.1 * number for number in range(10)}
EVERY = 10
SLOW_SECONDS = 30.0


def main() -> int:
    """Print the table; 0 where the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20, help="tens of steps of each turn")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}; a report every {EVERY} steps")
    good = True
    for name, delay in (("up", 0.0), ("down", None), ("answers in 30 s", SLOW_SECONDS)):
        with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder, _service(delay) as url:
            good &= _compare(name, Path(folder), url, options.steps, options.turns)
    return 0 if good else 1


def _compare(name: str, folder: Path, url: str, steps: int, turns: int) -> bool:
    layout = AttemptLayout(folder)
    sender = SpoolSender(layout, 1, lambda: ServiceClient(url, "a1", "token"))
    reporter = SpoolReporter(layout, 1, 0, sender)
    calls: list[float] = []
    changes = []
    work = torch.randn(400, 400)
    for turn in range(turns):
        silent, speaking = [], []
        # Step by step in turns: a machine that others use changes within seconds.
        for step in range(steps):
            silent.append(_step(work))
            progress = Progress(step=step, total_steps=steps)
            begun = time.perf_counter()
            reporter.points(turn * steps + step, VALUES, progress)
            calls.append(time.perf_counter() - begun)
            speaking.append(_step(work) + calls[-1])
        changes.append(median(speaking) / median(silent) - 1)
    reporter.close(0.1)
    calls.sort()
    p99, change = calls[int(len(calls) * 0.99)], median(changes)
    print(f"  service {name:16} call p50 {median(calls) * 1e6:5.0f} us   p99 {p99 * 1e6:5.0f} us   step {change:+.2%}")
    return p99 < CALL_SECONDS and change < STEP_CHANGE


def _step(work: torch.Tensor) -> float:
    begun = time.perf_counter()
    for _ in range(4 * EVERY):
        work @ work
    return time.perf_counter() - begun


@contextmanager
def _service(delay: float | None) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            stopping.wait(delay)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    stopping = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        port = server.server_address[1]
        if delay is None:
            server.server_close()
            yield f"http://127.0.0.1:{port}"
            return
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{port}"
        stopping.set()
        server.shutdown()


if __name__ == "__main__":
    sys.exit(main())
