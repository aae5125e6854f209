"""`python -m bench.list_jobs`: latency of pages of a list of 100,000 jobs, per filter, on both databases.

Requests run through the whole service in this process, without a socket. For comparison, the program also measures a
request that does nothing, and reading the rows of one page by key without HTTP. On a machine with other load, the CPU
time of this process is more telling than the latency; on Postgres it does not include the server's.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import sqlalchemy as sa

from service.core.ids import new_job_id
from service.db.migrate import upgrade
from service.db.models import Job, JobLabel
from tests.support.postgres import running_server
from tests.support.world import SPEC, World
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import dump_spec, parse_spec

LIMIT_SECONDS = 0.100
HALF_LABELS = ("even", "odd")
TERMINAL_STATUSES = ("succeeded", "succeeded", "succeeded", "failed", "cancelled")
NOT_ALL_VISIBLE = "SELECT sum(relpages - relallvisible) FROM pg_class WHERE relname IN ('jobs', 'job_labels')"
BOTH_LABELS = {"metadata[even]": "yes", "metadata[odd]": "yes"}


def main() -> int:
    """Print a table for each database. Return 0 if every p95 is below the limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=100)
    options = parser.parse_args()
    print(f"{options.jobs} jobs, pages of 20, {options.requests} requests each, p95 below {LIMIT_SECONDS * 1000:g} ms")
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder, running_server() as server:
        urls = {"SQLite": f"sqlite:///{folder}/bench.sqlite", "Postgres": server.copy_of(lambda url: None)}
        slow = 0
        for name, url in urls.items():
            upgrade(url)
            world = World(url, Path(folder) / name, rate_burst=10**6)
            fill(world, options.jobs)
            slow += measure(name, world, options.requests)
            world.database.dispose()
    return 1 if slow else 0


def fill(world: World, count: int) -> None:
    """Insert jobs of 20 users with 50 names over a year: 1 in 10,000 is lost, 1 in 1,000 has a rare label.

    Half of the jobs have one label and the other half another; the query for both has no result and is the slowest.
    """
    spec = dump_spec(resolve(parse_spec(SPEC), Site()))
    created_at = world.clock()
    for begin in range(0, count, 5000):
        rows, labels = [], []
        for number in range(begin, min(begin + 5000, count)):
            created_at += timedelta(seconds=300)
            row = _row(number, created_at, spec)
            rows.append(row)
            labels += [{"key": key, "value": value, "job_id": row["id"]} for key, value in row["labels"].items()]
        with world.database.write() as session:
            session.execute(sa.insert(Job), rows)
            session.execute(sa.insert(JobLabel), labels)
    world.clock.now = created_at
    gather_statistics(world)


def gather_statistics(world: World) -> None:
    """Gather statistics, and on Postgres vacuum, as autovacuum would within a minute, to allow index-only scans."""
    engine = sa.create_engine(world.database.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if world.database.dialect == "sqlite":
            connection.execute(sa.text("ANALYZE"))
            return
        # An autovacuum that started in the meantime can leave pages that are not marked as all-visible.
        for _ in range(20):
            connection.execute(sa.text("VACUUM ANALYZE jobs, job_labels"))
            if connection.scalar(sa.text(NOT_ALL_VISIBLE)) == 0:
                return
            time.sleep(1)
    raise RuntimeError("another transaction is open on this database")


def _row(number: int, created_at: Any, spec: dict[str, Any]) -> dict[str, Any]:
    status = "lost" if number % 10_000 == 7 else TERMINAL_STATUSES[number % len(TERMINAL_STATUSES)]
    rare = {"rare": "yes"} if number % 1000 == 3 else {}
    return {
        "id": new_job_id(created_at),
        "name": f"run {number % 50}",
        "status": status,
        "spec": spec,
        "labels": {"team": f"team{number % 5}", "stage": f"s{number % 3}", HALF_LABELS[number % 2]: "yes", **rare},
        "sweep_id": f"swp_{number // 100 % 400:026d}" if number % 4 == 0 else None,
        "created_by": f"user{number % 20}",
        "created_at": created_at,
        "updated_at": created_at,
        "latest": {"train/loss": 0.5},
    }


def measure(name: str, world: World, requests: int) -> int:
    """Print a line for each filter. Return how many exceeded the limit."""
    now = world.clock()
    month = {
        "created_after": (now - timedelta(days=60)).isoformat(),
        "created_before": (now - timedelta(days=30)).isoformat(),
    }
    page = world.client.get("/v1/jobs").json()
    sweep = f"swp_{7:026d}"
    middle = new_job_id(now - timedelta(days=180))
    filters: dict[str, dict[str, Any]] = {
        "newest": {},
        "oldest": {"order": "asc"},
        "a page from the middle": {"after": middle},
        "status: many": {"status": "succeeded"},
        "status: few": {"status": "lost"},
        "status: several": {"status": ["failed", "cancelled", "lost"]},
        "name": {"name": "run 7"},
        "unused name": {"name": "nothing"},
        "creator": {"created_by": "user3"},
        "metadata: common": {"metadata[team]": "team1"},
        "metadata: rare": {"metadata[rare]": "yes"},
        "metadata: none": {"metadata[team]": "nobody"},
        "metadata: three": {"metadata[team]": "team1", "metadata[stage]": "s2", "metadata[even]": "yes"},
        "metadata: three, oldest": {**BOTH_LABELS, "metadata[stage]": "s2", "order": "asc"},
        "metadata: never together": BOTH_LABELS,
        "metadata, status: never": {"metadata[team]": "team1", "status": "failed"},
        "sweep": {"sweep": sweep},
        "sweep, status, creator": {"sweep": sweep, "status": "succeeded", "created_by": "user4"},
        "a month": month,
        "a month, oldest": {"order": "asc", **month},
        "status and creator": {"status": "failed", "created_by": "user3"},
        "statuses, name: never": {"status": ["failed", "lost"], "name": "run 7"},
        "name, creator: never": {"name": "run 7", "created_by": "user3"},
        "few, creator, metadata": {"status": "lost", "created_by": "user7", "metadata[team]": "team2"},
        "name, metadata, month": {"name": "run 7", "metadata[team]": "team2", **month},
    }
    empty = Timing.measure(requests, lambda: send_request(world, "/livez"))
    rows = time_of_read_by_key(world, [job["id"] for job in page["data"]], requests)
    print(f"\n{name}: the rows of a page by key, p50 {rows * 1000:.1f} ms")
    print(f"  {'empty request':<24} {empty}")
    slow = 0
    for label, params in filters.items():
        timing = Timing.measure(requests, partial(send_request, world, "/v1/jobs", params))
        slow += timing.p95 > LIMIT_SECONDS
        print(f"  {label:<24} {timing}{'  too slow' if timing.p95 > LIMIT_SECONDS else ''}")
    return slow


@dataclass(frozen=True)
class Timing:
    """The latencies of some requests in seconds, and the CPU seconds of this process per request."""

    times: list[float]
    cpu: float

    @classmethod
    def measure(cls, count: int, action: Callable[[], None]) -> "Timing":
        action()
        before = time.process_time()
        return cls(timed(count, action), (time.process_time() - before) / (count + 1))

    @property
    def p95(self) -> float:
        return quantiles(self.times, n=20)[-1]

    def __str__(self) -> str:
        p50 = median(self.times)
        return f"p50 {p50 * 1000:6.1f} ms   p95 {self.p95 * 1000:6.1f} ms   CPU {self.cpu * 1000:5.1f} ms"


def time_of_read_by_key(world: World, ids: list[str], requests: int) -> float:
    """Return the median time of reading the same rows by key, without HTTP, in seconds."""

    def fetch() -> None:
        with world.database.read() as session:
            list(session.scalars(sa.select(Job).where(Job.id.in_(ids))))

    return median(timed(requests, fetch))


def timed(count: int, action: Callable[[], None]) -> list[float]:
    """Return the seconds of `count` calls, after one call that is not counted."""
    action()
    times = []
    for _ in range(count):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return times


def send_request(world: World, path: str, params: dict[str, Any] | None = None) -> None:
    response = world.client.get(path, params=params)
    assert response.status_code == 200, response.text


if __name__ == "__main__":
    sys.exit(main())
