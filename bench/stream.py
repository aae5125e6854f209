"""`python -m bench.stream`: many clients on live streams, on SQLite and on Postgres: delay of events,
memory per client, and a restart of the service.

Clients follow jobs (50 a job by default) while each job gets two events a second, each a batch of one point with the
time at which it was sent. Half way through the service is killed and started again on the same database: every
client reconnects with the last id it received. At the end each client must have received each event of its job
exactly once.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil

from bench._seed_jobs import SeededJob, seed_jobs
from service.db.engine import Database
from service.db.migrate import upgrade
from tests.support.postgres import running_server
from trainyard.demo import ServiceProcess

P99_SECONDS = 1.0


@dataclass
class Watcher:
    """One client of a stream; uses plain sockets, because 500 clients of an HTTP library would load the machine."""

    job: SeededJob
    steps: list[int] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    last_id: str = "0"
    connected: int = 0

    async def run(self, port: int, token: str, measuring: asyncio.Event) -> None:
        """Follow the stream forever and reconnect when the connection is lost."""
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._follow(port, token, measuring)
            await asyncio.sleep(0.2)

    async def _follow(self, port: int, token: str, measuring: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            request = f"GET /v1/jobs/{self.job.id}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            request += f"Authorization: Bearer {token}\r\nLast-Event-ID: {self.last_id}\r\n\r\n"
            writer.write(request.encode())
            status = await reader.readline()
            if b" 200 " not in status:
                return
            self.connected += 1
            while line := await reader.readline():
                if line.startswith(b"id: "):
                    event_id = line[4:].decode().strip()
                elif line.startswith(b"data: {") and b'"points"' in line:
                    now = time.time()
                    self.last_id = event_id
                    for point in json.loads(line[6:])["points"]:
                        self.steps.append(point["step"])
                        if measuring.is_set():
                            self.delays.append(now - point["value"])
        finally:
            writer.close()


def main() -> int:
    """Print the measurements; return 0 if the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration before and after the restart")
    parser.add_argument("--databases", nargs="*", default=["sqlite", "postgres"])
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}")
    failed = 0
    with running_server(durable=True) as server:
        for name in options.databases:
            with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
                folder = Path(directory)
                url = f"sqlite:///{folder}/bench.sqlite" if name == "sqlite" else server.create_database()
                print(f"\n{name}")
                failed |= asyncio.run(_measure(folder, url, options.clients, options.jobs, options.seconds))
    return failed


async def _measure(folder: Path, url: str, clients: int, job_count: int, seconds: float) -> int:
    upgrade(url)
    database = Database(url)
    jobs = seed_jobs(database, job_count)
    database.dispose()
    service = ServiceProcess(folder, database_url=url)
    service.start()
    try:
        token = _token(service)
        before = _memory(service)
        watchers = [Watcher(jobs[index % job_count]) for index in range(clients)]
        measuring = asyncio.Event()
        tasks = [asyncio.create_task(watcher.run(service.port, token, measuring)) for watcher in watchers]
        while not all(watcher.connected for watcher in watchers):
            await asyncio.sleep(0.1)
        print(f"{clients} clients on {job_count} jobs, 2 events a second each")
        print(f"  memory a client: {(_memory(service) - before) / clients / 1024:.0f} KiB in the service")
        measuring.set()
        sent = await _send_points(service.url, jobs, seconds, 0)
        measuring.clear()
        service.kill()
        service.start()
        restarted = time.monotonic()
        await asyncio.to_thread(_token, service)
        up = time.monotonic() - restarted
        sent += await _send_points(service.url, jobs, seconds, sent)
        complete = await _seconds_until_complete(watchers, sent)
        for task in tasks:
            task.cancel()
    finally:
        service.stop()
    return _print_results(watchers, sent, up, complete)


def _token(service: ServiceProcess) -> str:
    service.client().close()
    return (service.state_dir / "admin_token").read_text().strip()


def _memory(service: ServiceProcess) -> int:
    assert service._process is not None
    return psutil.Process(service._process.pid).memory_info().rss


async def _send_points(url: str, jobs: list[SeededJob], seconds: float, first: int) -> int:
    """Send two points a second for each job; return how many were sent for each."""
    limits = httpx.Limits(max_connections=len(jobs))
    count, started = 0, time.monotonic()
    async with httpx.AsyncClient(base_url=url, timeout=30, limits=limits) as client:
        while time.monotonic() - started < seconds:
            count += 1
            await asyncio.gather(*(_send_point(client, job, first + count) for job in jobs))
            await asyncio.sleep(max(0.0, started + count * 0.5 - time.monotonic()))
    return count


async def _send_point(client: httpx.AsyncClient, job: SeededJob, step: int) -> None:
    stamp = datetime.now(UTC).isoformat()
    point = {"key": "sent", "step": step, "value": time.time(), "time": stamp}
    body = {"execution": 1, "resumed_from_step": 0, "points": [point]}
    headers = {"Authorization": f"Bearer {job.token}"}
    (await client.post(job.metrics_path, json=body, headers=headers)).raise_for_status()


async def _seconds_until_complete(watchers: list[Watcher], sent: int) -> float:
    """Wait until every client has received the last event; return the seconds."""
    started = time.monotonic()
    while time.monotonic() - started < 60 and not all(
        watcher.steps and watcher.steps[-1] == sent for watcher in watchers
    ):
        await asyncio.sleep(0.05)
    return time.monotonic() - started


def _print_results(watchers: list[Watcher], sent: int, up: float, complete: float) -> int:
    delays = sorted(delay for watcher in watchers for delay in watcher.delays)
    p50, p99 = delays[len(delays) // 2], delays[int(len(delays) * 0.99)]
    complete_streams = sum(watcher.steps == list(range(1, sent + 1)) for watcher in watchers)
    print(f"  from sending a point to the client: p50 {p50 * 1e3:.0f} ms   p99 {p99 * 1e3:.0f} ms")
    print(f"  after kill -9: up in {up:.1f} s; all clients had the last event {complete:.1f} s after it was sent")
    print(f"  {complete_streams} of {len(watchers)} clients received each of {sent} events exactly once")
    return 0 if p99 < P99_SECONDS and complete_streams == len(watchers) else 1


if __name__ == "__main__":
    sys.exit(main())
