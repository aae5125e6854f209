"""`python -m bench.read`: time to read one series of a million points as 2,000 over HTTP, on SQLite and Postgres.

The points are reported over HTTP as by a worker, while the service downsamples them. Then the whole series and random
windows of it are read. The baseline is one GROUP BY over the same points in the database.
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

from bench._seed_jobs import SeededJob, seed_jobs
from service.db.engine import Database
from service.db.migrate import upgrade
from tests.support.postgres import running_server
from trainyard.client import Client
from trainyard.demo import ServiceProcess

LIMIT_SECONDS = 0.250
MAX_POINTS = 2000


def main() -> int:
    """Print the table; return 0 if the target is met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--reads", type=int, default=40)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}")
    good = True
    with running_server(durable=True) as server:
        for name in ("sqlite", "postgres"):
            with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
                url = f"sqlite:///{folder}/bench.sqlite" if name == "sqlite" else server.create_database()
                good &= _measure(name, Path(folder), url, options.points, options.reads)
    return 0 if good else 1


def _measure(name: str, folder: Path, url: str, points: int, reads: int) -> bool:
    upgrade(url)
    database = Database(url)
    (job,) = seed_jobs(database, 1)
    service = ServiceProcess(folder, database_url=url)
    service.start()
    try:
        with service.client() as client:
            started = time.perf_counter()
            report_points(service.url, job, points)
            store_seconds = time.perf_counter() - started
            wait_for_downsampling(database, job, points)
            downsample_seconds = time.perf_counter() - started
            whole = [_read_seconds(client, job, 0) for _ in range(reads)]
            zoom_seconds = [_read_seconds(client, job, random.randrange(points // 2)) for _ in range(reads)]
        baseline = _baseline_seconds(database, job, points)
    finally:
        service.stop()
        database.dispose()
    print(f"{name}: {points:,} points stored after {store_seconds:.1f} s, downsampled after {downsample_seconds:.1f} s")
    for label, times in (("whole", whole), ("window", zoom_seconds)):
        print(f"  {label:10} to {MAX_POINTS}: median {median(times) * 1e3:6.0f} ms   p95 {p95(times) * 1e3:6.0f} ms")
    print(f"  the same by GROUP BY, without HTTP: {baseline * 1e3:6.0f} ms")
    return max(p95(whole), p95(zoom_seconds)) < LIMIT_SECONDS


def report_points(url: str, job: SeededJob, points: int) -> None:
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


def wait_for_downsampling(database: Database, job: SeededJob, points: int) -> None:
    """Wait until downsampling lags by at most 20,000 points, its lag while points arrive."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with database.read() as session:
            done = session.scalar(sa.text("SELECT sequence FROM downsample_states WHERE job_pk = :pk"), {"pk": job.pk})
        if done is not None and done * 1000 >= points - 20_000:
            return
        time.sleep(0.1)
    raise SystemExit("downsampling did not catch up")


def _read_seconds(client: Client, job: SeededJob, from_step: int) -> float:
    started = time.perf_counter()
    (series,) = client.metrics(job.id, ["train/loss"], from_step=from_step, max_points=MAX_POINTS).series
    seconds = time.perf_counter() - started
    assert MAX_POINTS / 2 <= len(series.steps) <= MAX_POINTS
    return seconds


def _baseline_seconds(database: Database, job: SeededJob, points: int) -> float:
    width = max(1, points * 2 // MAX_POINTS)
    query = sa.text(
        "SELECT step / :width AS bucket, MIN(value), MAX(value) FROM points WHERE job_pk = :pk"
        " GROUP BY step / :width ORDER BY bucket"
    )
    times = []
    for _ in range(5):
        started = time.perf_counter()
        with database.read() as session:
            session.execute(query, {"width": width, "pk": job.pk}).all()
        times.append(time.perf_counter() - started)
    return median(times)


def p95(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.95)]


if __name__ == "__main__":
    sys.exit(main())
