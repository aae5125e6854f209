"""Requests at a fixed rate, from a process of its own: `python -m bench._load URL TOKEN RATE COUNT`, the body on stdin.

Prints, as JSON, the seconds from when each was due to its answer.
"""

import http.client
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

THREADS = 32


class Caller:
    """Keeps one connection a thread."""

    def __init__(self, url: str, token: str, body: bytes) -> None:
        self._to = urlsplit(url)
        self._body = body
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._own = threading.local()

    def __call__(self, due: float) -> float:
        """Seconds from `due` to the answer."""
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPConnection(str(self._to.hostname), self._to.port, timeout=60)
        connection = self._own.connection
        connection.request("POST", self._to.path, self._body, self._headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 201:
            raise RuntimeError(f"{answer.status}: {text[:500]!r}")
        return time.monotonic() - due


def paced(call: Caller, count: int, rate: float) -> list[float]:
    """A request that waits for its turn to be sent has waited."""
    with ThreadPoolExecutor(THREADS) as pool:
        began = time.monotonic()
        futures = []
        for number in range(count):
            due = began + number / rate
            time.sleep(max(0.0, due - time.monotonic()))
            futures.append(pool.submit(call, due))
        return [future.result() for future in futures]


if __name__ == "__main__":
    _, url, token, rate, count = sys.argv
    caller = Caller(url, token, sys.stdin.buffer.read())
    paced(caller, 10, 10.0)
    json.dump(paced(caller, int(count), float(rate)), sys.stdout)
