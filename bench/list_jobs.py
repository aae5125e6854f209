"""`python -m bench.list_jobs`: latency of pages of a list of 100,000 jobs, per filter, on both databases.

Requests run through the whole service in this process, without a socket. For comparison, the program also measures a
request that does nothing, and reading the rows of one page by key without HTTP. On a machine with other load, the CPU
time of this process is more telling than the latency; on Postgres it does not include the server's.
"""

import argparse
import gc
import re
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
from service.db.models import Job
from tests.support.many_jobs import fill
from tests.support.postgres import running_server
from tests.support.world import World

LIMIT_SECONDS = 0.100
METRICS = 20
HALF_LABELS = ("even", "odd")
TERMINAL_STATUSES = ("succeeded", "succeeded", "succeeded", "failed", "cancelled")
NOT_ALL_VISIBLE = (
    "SELECT sum(relpages - relallvisible) FROM pg_class WHERE relname IN ('jobs', 'job_labels', 'job_values')"
)
BOTH_LABELS = {"metadata[even]": "yes", "metadata[odd]": "yes"}


def main() -> int:
    """Print a table for each database. Return 0 if every p95 is below the limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--only", default="", help="measure only the filters whose label matches this expression")
    options = parser.parse_args()
    print(f"{options.jobs} jobs, pages of 20, {options.requests} requests each, p95 below {LIMIT_SECONDS * 1000:g} ms")
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder, running_server() as server:
        urls = {"SQLite": f"sqlite:///{folder}/bench.sqlite", "Postgres": server.copy_of(lambda url: None)}
        slow = 0
        for name, url in urls.items():
            upgrade(url)
            world = World(url, Path(folder) / name, rate_burst=10**6)
            fill(world, options.jobs)
            slow += measure(name, world, options.requests, options.only)
            world.database.dispose()
    return 1 if slow else 0


def measure(name: str, world: World, requests: int, only: str = "") -> int:
    """Print a line for each filter. Return how many exceeded the limit."""
    # What the rows of the database were made from is not part of a service, whose collections it would slow down.
    gc.collect()
    gc.freeze()
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
        **table_queries(last_of(world, "eval/loss", "-")),
    }
    empty = Timing.measure(requests, lambda: send_request(world, "/livez"))
    rows = time_of_read_by_key(world, [job["id"] for job in page["data"]], requests)
    print(f"\n{name}: the rows of a page by key, p50 {rows * 1000:.1f} ms")
    print(f"  {'empty request':<28} {empty}")
    slow = 0
    for label, params in filters.items():
        if not re.search(only, label):
            continue
        timing = Timing.measure(requests, partial(send_request, world, "/v1/jobs", params))
        slow += timing.p95 > LIMIT_SECONDS
        print(f"  {label:<28} {timing}{'  too slow' if timing.p95 > LIMIT_SECONDS else ''}")
    return slow


def last_of(world: World, sort: str, sign: str) -> str:
    """Return the id of a job in the middle of an order."""
    where = {"where": f"{sort} < 500000", "sort": f"{sign}{sort}"}
    data: list[dict[str, Any]] = world.client.get("/v1/jobs", params=where).json()["data"]
    return str(data[-1]["id"])


def table_queries(middle: str) -> dict[str, dict[str, Any]]:
    """Return the requests of the runs table: orders by each kind of key, and queries."""
    columns = {"columns": ["optimizer.lr", "eval/loss", "min(metric/3)", "seed", "width", "tag"], "brief": "true"}
    orders = {
        "sort: field, few values": "optimizer.lr",
        "sort: text of a field": "-optimizer.name",
        "sort: parameter": "-width",
        "sort: last of a metric": "eval/loss",
        "sort: smallest of a metric": "-min(metric/7)",
        "sort: step of the best": "best_step(eval/loss)",
        "sort: rare parameter": "-rare",
        "sort: runtime": "-runtime",
        "sort: name": "name",
        "sort: status": "-status",
    }
    queries = {
        "where: range of a metric": ("eval/loss < 500000", "eval/loss"),
        "where: two fields": ("optimizer.lr = 0.0003 and seed = 2", "-eval/loss"),
        "where: half of the jobs": ("width > 500000 and metric/3 < 500000", "eval/loss"),
        "where: never together": ("metric/3 < 100000 and metric/3 > 99990 and seed = 3", "-width"),
        "where: opposite ranges": ("metric/3 < 300000 and min(metric/3) > 300000", "eval/loss"),
        "where: rare": ("exists rare and status = succeeded", "eval/loss"),
        "where: or, not": ("(seed = 1 or seed = 3) and not (status = failed or eval/loss > 900000)", "-metric/5"),
        "where: newest": ("optimizer.lr < 0.0004 and eval/loss < 300000", ""),
        "where: name contains": ('name ~ "run 7" and eval/loss < 300000', "eval/loss"),
        "where: without the metric": ("not exists eval/loss", "-width"),
        "where: few of a user": ("user = user3 and status = lost", "eval/loss"),
    }
    return {
        **{label: {"sort": sort} for label, sort in orders.items()},
        "sort: a page from the middle": {"sort": "-eval/loss", "after": middle},
        "sort, six columns": {"sort": "eval/loss", "limit": 50, **columns},
        **{label: {"where": where, **({"sort": sort} if sort else {})} for label, (where, sort) in queries.items()},
    }


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
