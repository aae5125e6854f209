"""`python -m bench._ingest_writer`: one writer of `bench.ingest`.

It reads a plan as JSON from standard input and prints its results as JSON. Every tenth batch is sent twice, as by a
worker that lost the response. The plan selects the target: Trainyard, MLflow, or a table without any service.
"""

import json
import random
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

KEYS = 10
DUPLICATE_EVERY = 10
Point = tuple[str, int, float]
Send = Callable[[list[Point]], None]


def main() -> None:
    """Send batches for the planned seconds; print the points stored, the latency of each request and CPU seconds."""
    plan = json.load(sys.stdin)
    send = SENDERS[plan["kind"]](plan)
    time.sleep(max(0.0, plan["start"] - time.time()))
    started, seconds, points, times = time.perf_counter(), plan["seconds"], 0, []
    cpu_started = time.process_time()
    for number, batch in enumerate(_batches(plan["size"])):
        for _ in range(2 if number % DUPLICATE_EVERY == 0 else 1):
            sent_at = time.perf_counter()
            send(batch)
            times.append(time.perf_counter() - sent_at)
        points += len(batch)
        if time.perf_counter() - started > seconds:
            break
    result = {"points": points, "seconds": time.perf_counter() - started, "times": times}
    print(json.dumps({**result, "cpu": time.process_time() - cpu_started}))


def _batches(size: int) -> Iterator[list[Point]]:
    step = 0
    while True:
        batch: list[Point] = []
        while len(batch) < size:
            step += 1
            batch += [(f"train/metric_{key}", step, random.random()) for key in range(KEYS)]
        yield batch


def _timestamp(step: int) -> str:
    """Return the timestamp of a step; steps are one second apart."""
    return f"2026-01-{1 + step // 86400 % 28:02}T{step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}.000Z"


class _Connection:
    """A persistent HTTP connection; `http.client` would need more CPU time than the writers can have."""

    def __init__(self, plan: dict[str, Any], headers: dict[str, str]):
        self._address = (plan["host"], plan["port"])
        lines = [f"POST {plan['path']} HTTP/1.1", f"Host: {plan['host']}:{plan['port']}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._head = "\r\n".join(lines).encode() + b"\r\nContent-Length: %d\r\n\r\n"
        self._socket: socket.socket | None = None

    def post(self, body: bytes) -> tuple[int, float]:
        """Send one request and return the status and the seconds of `Retry-After`.

        Raises:
            OSError: the server closed the connection; the next call opens a new one.
        """
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=120)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(self._head % len(body) + body)
            return self._read_response(self._socket)
        except OSError:
            self._socket.close()
            self._socket = None
            raise

    def _read_response(self, connection: socket.socket) -> tuple[int, float]:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive(connection)
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        remaining = int(headers["content-length"]) - len(rest)
        while remaining > 0:
            remaining -= len(self._receive(connection))
        if headers.get("connection") == "close":
            connection.close()
            self._socket = None
        return int(first.split(" ", 2)[1]), float(headers.get("retry-after", "1"))

    @staticmethod
    def _receive(connection: socket.socket) -> bytes:
        data = connection.recv(65536)
        if not data:
            raise ConnectionError("closed")
        return data


def _make_post(plan: dict[str, Any], headers: dict[str, str]) -> Callable[[bytes], None]:
    connection = _Connection(plan, headers)

    def post(body: bytes) -> None:
        while True:
            try:
                status, seconds = connection.post(body)
            except OSError:
                time.sleep(0.05)  # The server process that had the connection ended.
                continue
            if status == 200:
                return
            if status not in (429, 503):
                raise SystemExit(f"{plan['kind']} answered {status}")
            time.sleep(seconds)

    return post


def _send_to_trainyard(plan: dict[str, Any]) -> Send:
    post = _make_post(plan, {"Authorization": f"Bearer {plan['token']}", "Content-Type": "application/json"})

    def send(batch: list[Point]) -> None:
        times = {s: _timestamp(s) for _, s, _ in batch[::KEYS]}
        points = ",".join(f'{{"key":"{k}","step":{s},"value":{v!r},"time":"{times[s]}"}}' for k, s, v in batch)
        post(f'{{"execution":1,"resumed_from_step":0,"points":[{points}],"progress":null}}'.encode())

    return send


def _send_to_mlflow(plan: dict[str, Any]) -> Send:
    post = _make_post(plan, {"Content-Type": "application/json"})

    def send(batch: list[Point]) -> None:
        points = ",".join(
            f'{{"key":"{k}","value":{v!r},"timestamp":{1767225600000 + 1000 * s},"step":{s}}}' for k, s, v in batch
        )
        post(f'{{"run_id":"{plan["run"]}","metrics":[{points}]}}'.encode())

    return send


def _rows(plan: dict[str, Any], batch: list[Point], sequence: int) -> list[tuple[Any, ...]]:
    """Return the rows of a batch for the table `points`."""
    key = {f"train/metric_{number}": number + 1 for number in range(KEYS)}
    return [(plan["job"], key[k], s, 1, v, 0, 1767225600000000 + 1000000 * s, sequence) for k, s, v in batch]


def _insert_into_sqlite(plan: dict[str, Any]) -> Send:
    connection = sqlite3.connect(plan["path"], isolation_level=None, timeout=60)
    connection.execute("PRAGMA synchronous=FULL")
    sequence = 0

    def send(batch: list[Point]) -> None:
        nonlocal sequence
        sequence += 1
        connection.execute("BEGIN IMMEDIATE")
        insert = "INSERT INTO points (job_pk, key_pk, step, execution, value, special, time, sequence)"
        rows = _rows(plan, batch, sequence)
        connection.executemany(f"{insert} VALUES (?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING", rows)
        connection.execute("COMMIT")

    return send


def _insert_into_postgres(plan: dict[str, Any]) -> Send:
    import psycopg

    connection = psycopg.connect(plan["path"], autocommit=True)
    types = ("bigint", "bigint", "bigint", "bigint", "float8", "smallint", "bigint", "bigint")
    arrays = ",".join(f"%s::{type_}[]" for type_ in types)
    insert = (
        "INSERT INTO points (job_pk, key_pk, step, execution, value, special, time, sequence)"
        f" SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING"
    )
    sequence = 0

    def send(batch: list[Point]) -> None:
        nonlocal sequence
        sequence += 1
        columns = zip(*_rows(plan, batch, sequence), strict=True)
        connection.execute(insert, ["{" + ",".join(map(repr, column)) + "}" for column in columns])

    return send


SENDERS = {
    "trainyard": _send_to_trainyard,
    "mlflow": _send_to_mlflow,
    "sqlite": _insert_into_sqlite,
    "postgres": _insert_into_postgres,
}


if __name__ == "__main__":
    main()
