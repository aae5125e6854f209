"""`python -m bench._load_generator URL TOKEN RATE COUNT`: POST requests at a fixed rate; the body is read from stdin.

Prints the latencies as a JSON list, in seconds from the time at which each request was due.
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
    """Sends a request on the connection of the calling thread."""

    def __init__(self, url: str, token: str, body: bytes) -> None:
        self._url = urlsplit(url)
        self._body = body
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._local = threading.local()

    def __call__(self, due: float) -> float:
        """Send one request and return the seconds from `due` to the end of the response.

        Raises:
            RuntimeError: the status is not 201.
        """
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection(str(self._url.hostname), self._url.port, timeout=60)
        connection = self._local.connection
        connection.request("POST", self._url.path, self._body, self._headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != 201:
            raise RuntimeError(f"{response.status}: {text[:500]!r}")
        return time.monotonic() - due


def send_at_rate(call: Caller, count: int, rate: float) -> list[float]:
    """Send `count` requests, `rate` a second; the latencies include the time that a request waits for a thread."""
    with ThreadPoolExecutor(THREADS) as pool:
        started = time.monotonic()
        futures = []
        for number in range(count):
            due = started + number / rate
            time.sleep(max(0.0, due - time.monotonic()))
            futures.append(pool.submit(call, due))
        return [future.result() for future in futures]


if __name__ == "__main__":
    _, url, token, rate, count = sys.argv
    caller = Caller(url, token, sys.stdin.buffer.read())
    send_at_rate(caller, 10, 10.0)
    json.dump(send_at_rate(caller, int(count), float(rate)), sys.stdout)
