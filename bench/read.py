"""`python -m bench.read`: time to read one series of a million points as 2,000 over HTTP, on SQLite and Postgres.

The points are reported over HTTP like a worker's, while they are downsampled. Then the whole series and random windows
of it are read. The floor is the same chart by one GROUP BY over the points in the database.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx
import sqlalchemy as sa

from bench._processor import spent_by_children
from bench._seeded import SeededJob, seed_jobs
from service.db.engine import Database
from service.db.migrate import upgrade
from tests.support.postgres import running_server
from trainyard.client import Client
from trainyard.demo import ServiceProcess

SECONDS = 0.250
MOST = 2000


def main() -> int:
    """Print the table; 0 where the target is met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--reads", type=int, default=40)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}")
    good = True
    with running_server(durable=True) as server:
        for name in ("sqlite", "postgres"):
            with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as made:
                url = f"sqlite:///{made}/bench.sqlite" if name == "sqlite" else server.create_database()
                good &= _one(name, Path(made), url, options.points, options.reads)
    return 0 if good else 1


def _one(name: str, folder: Path, url: str, points: int, reads: int) -> bool:
    upgrade(url)
    database = Database(url)
    (job,) = seed_jobs(database, 1)
    service = ServiceProcess(folder, database_url=url)
    service.start()
    try:
        with service.client() as client:
            begun = time.perf_counter()
            _fill(service.url, job, points)
            filled = time.perf_counter() - begun
            _settle(database, job, points)
            settled = time.perf_counter() - begun
            before = spent_by_children()
            whole = [_timed(client, job, 0) for _ in range(reads)]
            spent = (spent_by_children() - before) / reads
            zoomed = [_timed(client, job, random.randrange(points // 2)) for _ in range(reads)]
        floor = _grouped(database, job, points)
    finally:
        service.stop()
        database.dispose()
    print(f"{name}: {points:,} points stored after {filled:.1f} s, downsampled after {settled:.1f} s")
    for what, times in (("the whole", whole), ("a window", zoomed)):
        print(f"  {what:10} to {MOST}: median {median(times) * 1e3:6.0f} ms   p95 {_p95(times) * 1e3:6.0f} ms")
    print(f"  CPU time of the service for the whole series: {spent * 1e3:.0f} ms")
    print(f"  the same by GROUP BY, without HTTP: {floor * 1e3:6.0f} ms")
    return max(_p95(whole), _p95(zoomed)) < SECONDS


def _fill(url: str, job: SeededJob, points: int) -> None:
    stamp = '"2026-01-01T00:00:00.000Z"'
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {job.token}"}, timeout=60) as client:
        for start in range(0, points, 1000):
            points_json = ",".join(
                f'{{"key":"train/loss","step":{step},"value":{random.random()!r},"time":{stamp}}}'
                for step in range(start, start + 1000)
            )
            body = f'{{"execution":1,"resumed_from_step":0,"points":[{points_json}]}}'
            headers = {"Content-Type": "application/json"}
            client.post(job.metrics_path, content=body, headers=headers).raise_for_status()


def _settle(database: Database, job: SeededJob, points: int) -> None:
    """Wait until downsampling has caught up as far as it does while points arrive."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with database.read() as session:
            done = session.scalar(sa.text("SELECT sequence FROM downsample_states WHERE job_pk = :pk"), {"pk": job.pk})
        if done is not None and done * 1000 >= points - 20_000:
            return
        time.sleep(0.1)
    raise SystemExit("downsampling did not catch up")


def _timed(client: Client, job: SeededJob, from_step: int) -> float:
    begun = time.perf_counter()
    (series,) = client.metrics(job.id, ["train/loss"], from_step=from_step, max_points=MOST).series
    seconds = time.perf_counter() - begun
    assert MOST / 2 <= len(series.steps) <= MOST
    return seconds


def _grouped(database: Database, job: SeededJob, points: int) -> float:
    width = max(1, points * 2 // MOST)
    query = sa.text(
        "SELECT step / :width AS bucket, MIN(value), MAX(value) FROM points WHERE job_pk = :pk"
        " GROUP BY step / :width ORDER BY bucket"
    )
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        with database.read() as session:
            session.execute(query, {"width": width, "pk": job.pk}).all()
        times.append(time.perf_counter() - begun)
    return median(times)


def _p95(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.95)]


if __name__ == "__main__":
    sys.exit(main())
