"""`python -m bench._ingest_writer`: one writer of `bench.ingest`, a process of its own; prints what it got through.

It reads a plan as JSON on standard input. Each batch is made and sent in turn; every tenth is sent twice, as a worker
does whose answer was lost. The same program writes to Trainyard, to MLflow, and to a table without any service.
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
Triple = tuple[str, int, float]
Send = Callable[[list[Triple]], None]


def main() -> None:
    """Write until the time is over; print points stored, requests and their times as JSON."""
    plan = json.load(sys.stdin)
    send = {"trainyard": _trainyard, "mlflow": _mlflow, "sqlite": _sqlite, "postgres": _postgres}[plan["kind"]](plan)
    time.sleep(max(0.0, plan["start"] - time.time()))
    begun, seconds, points, times = time.perf_counter(), plan["seconds"], 0, []
    spent = time.process_time()
    for number, batch in enumerate(_batches(plan["size"])):
        for _ in range(2 if number % DUPLICATE_EVERY == 0 else 1):
            sent = time.perf_counter()
            send(batch)
            times.append(time.perf_counter() - sent)
        points += len(batch)
        if time.perf_counter() - begun > seconds:
            break
    result = {"points": points, "seconds": time.perf_counter() - begun, "times": times}
    print(json.dumps({**result, "processor": time.process_time() - spent}))


def _batches(size: int) -> Iterator[list[Triple]]:
    step = 0
    while True:
        batch: list[Triple] = []
        while len(batch) < size:
            step += 1
            batch += [(f"train/metric_{key}", step, random.random()) for key in range(KEYS)]
        yield batch


def _clock(step: int) -> str:
    """The time of a step, one a second; what is reported together has one time."""
    return f"2026-01-{1 + step // 86400 % 28:02}T{step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}.000Z"


class _Connection:
    """One kept open to a service: http.client would take more of the processor than the services have left."""

    def __init__(self, plan: dict[str, Any], headers: dict[str, str]):
        self._address = (plan["host"], plan["port"])
        lines = [f"POST {plan['path']} HTTP/1.1", f"Host: {plan['host']}:{plan['port']}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._head = "\r\n".join(lines).encode() + b"\r\nContent-Length: %d\r\n\r\n"
        self._socket: socket.socket | None = None

    def post(self, body: bytes) -> tuple[int, float]:
        """The status, and the seconds that Retry-After says.

        Raises:
            OSError: the other side closed it; the next call connects anew.
        """
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=120)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(self._head % len(body) + body)
            return self._answer(self._socket)
        except OSError:
            self._socket.close()
            self._socket = None
            raise

    def _answer(self, connection: socket.socket) -> tuple[int, float]:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more(connection)
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        missing = int(headers["content-length"]) - len(rest)
        while missing > 0:
            missing -= len(self._more(connection))
        if headers.get("connection") == "close":
            connection.close()
            self._socket = None
        return int(first.split(" ", 2)[1]), float(headers.get("retry-after", "1"))

    @staticmethod
    def _more(connection: socket.socket) -> bytes:
        data = connection.recv(65536)
        if not data:
            raise ConnectionError("closed")
        return data


def _poster(plan: dict[str, Any], headers: dict[str, str]) -> Callable[[bytes], None]:
    connection = _Connection(plan, headers)

    def post(body: bytes) -> None:
        while True:
            try:
                status, seconds = connection.post(body)
            except OSError:
                time.sleep(0.05)  # its worker ended
                continue
            if status == 200:
                return
            if status not in (429, 503):
                raise SystemExit(f"{plan['kind']} answered {status}")
            time.sleep(seconds)

    return post


def _trainyard(plan: dict[str, Any]) -> Send:
    post = _poster(plan, {"Authorization": f"Bearer {plan['token']}", "Content-Type": "application/json"})

    def send(batch: list[Triple]) -> None:
        times = {s: _clock(s) for _, s, _ in batch[::KEYS]}
        points = ",".join(f'{{"key":"{k}","step":{s},"value":{v!r},"time":"{times[s]}"}}' for k, s, v in batch)
        post(f'{{"execution":1,"resumed_from_step":0,"points":[{points}],"progress":null}}'.encode())

    return send


def _mlflow(plan: dict[str, Any]) -> Send:
    post = _poster(plan, {"Content-Type": "application/json"})

    def send(batch: list[Triple]) -> None:
        points = ",".join(
            f'{{"key":"{k}","value":{v!r},"timestamp":{1767225600000 + 1000 * s},"step":{s}}}' for k, s, v in batch
        )
        post(f'{{"run_id":"{plan["run"]}","metrics":[{points}]}}'.encode())

    return send


def _rows(plan: dict[str, Any], batch: list[Triple], number: int) -> list[tuple[Any, ...]]:
    key = {f"train/metric_{number}": number + 1 for number in range(KEYS)}
    return [(plan["job"], key[k], s, 1, v, 0, 1767225600000000 + 1000000 * s, number) for k, s, v in batch]


def _sqlite(plan: dict[str, Any]) -> Send:
    connection = sqlite3.connect(plan["path"], isolation_level=None, timeout=60)
    connection.execute("PRAGMA synchronous=FULL")
    number = 0

    def send(batch: list[Triple]) -> None:
        nonlocal number
        number += 1
        connection.execute("BEGIN IMMEDIATE")
        insert = "INSERT INTO points (job_pk, key_pk, step, execution, value, special, time, sequence)"
        rows = _rows(plan, batch, number)
        connection.executemany(f"{insert} VALUES (?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING", rows)
        connection.execute("COMMIT")

    return send


def _postgres(plan: dict[str, Any]) -> Send:
    import psycopg

    connection = psycopg.connect(plan["path"], autocommit=True)
    types = ("bigint", "bigint", "bigint", "bigint", "float8", "smallint", "bigint", "bigint")
    arrays = ",".join(f"%s::{type_}[]" for type_ in types)
    insert = (
        "INSERT INTO points (job_pk, key_pk, step, execution, value, special, time, sequence)"
        f" SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING"
    )
    number = 0

    def send(batch: list[Triple]) -> None:
        nonlocal number
        number += 1
        columns = zip(*_rows(plan, batch, number), strict=True)
        connection.execute(insert, ["{" + ",".join(map(repr, column)) + "}" for column in columns])

    return send


if __name__ == "__main__":
    main()
