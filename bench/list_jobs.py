"""`python -m bench.list_jobs`: pages of a list of 100,000 jobs, each filter alone and some together, on both databases.

Through the whole service in this process, HTTP but for the socket. Beside them what the machine and the framework take
by themselves: a request that does nothing, and the rows of one page fetched by key without HTTP. On a machine that
others use, the processor's time of this process tells more than the clock; on Postgres the server's is not in it.
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

LIMIT_SECONDS = 0.050
_HALVES = ("even", "odd")
FINAL = ("succeeded", "succeeded", "succeeded", "failed", "cancelled")
_UNSETTLED = "SELECT sum(relpages - relallvisible) FROM pg_class WHERE relname IN ('jobs', 'job_labels')"
_NEVER = {"metadata[even]": "yes", "metadata[odd]": "yes"}


def main() -> int:
    """Print a table a database; 0 where every p95 is below the limit."""
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
    """Jobs of twenty people and fifty names over a year; one in ten thousand is lost, one in a thousand has a label.

    Half of them have one label, the other half another: together they match nothing, which takes longest to find out.
    """
    spec = dump_spec(resolve(parse_spec(SPEC), Site()))
    moment = world.clock()
    for begin in range(0, count, 5000):
        rows, labels = [], []
        for number in range(begin, min(begin + 5000, count)):
            moment += timedelta(seconds=300)
            row = _row(number, moment, spec)
            rows.append(row)
            labels += [{"key": key, "value": value, "job_id": row["id"]} for key, value in row["labels"].items()]
        with world.database.write() as session:
            session.execute(sa.insert(Job), rows)
            session.execute(sa.insert(JobLabel), labels)
    world.clock.now = moment
    settle(world)


def settle(world: World) -> None:
    """What Postgres' autovacuum does by itself within a minute of so many rows: it lets indices answer alone."""
    engine = sa.create_engine(world.database.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if world.database.dialect == "sqlite":
            connection.execute(sa.text("ANALYZE"))
            return
        # One that has begun by itself meanwhile keeps rows from being known as seen by all.
        for _ in range(20):
            connection.execute(sa.text("VACUUM ANALYZE jobs, job_labels"))
            if connection.scalar(sa.text(_UNSETTLED)) == 0:
                return
            time.sleep(1)
    raise RuntimeError("another transaction is open on this database")


def _row(number: int, moment: Any, spec: dict[str, Any]) -> dict[str, Any]:
    status = "lost" if number % 10_000 == 7 else FINAL[number % len(FINAL)]
    rare = {"rare": "yes"} if number % 1000 == 3 else {}
    return {
        "id": new_job_id(moment),
        "name": f"run {number % 50}",
        "status": status,
        "spec": spec,
        "labels": {"team": f"team{number % 5}", "stage": f"s{number % 3}", _HALVES[number % 2]: "yes", **rare},
        "sweep_id": f"swp_{number // 100 % 400:026d}" if number % 4 == 0 else None,
        "created_by": f"person{number % 20}",
        "created_at": moment,
        "updated_at": moment,
        "latest": {"train/loss": 0.5},
    }


def measure(name: str, world: World, requests: int) -> int:
    """Print a line a filter; how many were too slow."""
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
        "name that nobody used": {"name": "nothing"},
        "creator": {"created_by": "person3"},
        "metadata: common": {"metadata[team]": "team1"},
        "metadata: rare": {"metadata[rare]": "yes"},
        "metadata: none": {"metadata[team]": "nobody"},
        "metadata: three": {"metadata[team]": "team1", "metadata[stage]": "s2", "metadata[even]": "yes"},
        "metadata: three, oldest": {**_NEVER, "metadata[stage]": "s2", "order": "asc"},
        "metadata: never together": _NEVER,
        "metadata, status: never": {"metadata[team]": "team1", "status": "failed"},
        "sweep": {"sweep": sweep},
        "sweep, status, creator": {"sweep": sweep, "status": "succeeded", "created_by": "person4"},
        "a month": month,
        "a month, oldest": {"order": "asc", **month},
        "status and creator": {"status": "failed", "created_by": "person3"},
        "statuses, name: never": {"status": ["failed", "lost"], "name": "run 7"},
        "name, creator: never": {"name": "run 7", "created_by": "person3"},
        "few, creator, metadata": {"status": "lost", "created_by": "person7", "metadata[team]": "team2"},
        "name, metadata, month": {"name": "run 7", "metadata[team]": "team2", **month},
    }
    nothing = Taken.by(requests, lambda: _answer(world, "/livez"))
    rows = floor(world, [job["id"] for job in page["data"]], requests)
    print(f"\n{name}: the rows of a page by key, p50 {rows * 1000:.1f} ms")
    print(f"  {'a request for nothing':<24} {nothing}")
    slow = 0
    for label, params in filters.items():
        taken = Taken.by(requests, partial(_answer, world, "/v1/jobs", params))
        slow += taken.p95 > LIMIT_SECONDS
        print(f"  {label:<24} {taken}{'  too slow' if taken.p95 > LIMIT_SECONDS else ''}")
    return slow


@dataclass(frozen=True)
class Taken:
    """The seconds of some requests, and of this process's processor for them."""

    times: list[float]
    processor: float

    @classmethod
    def by(cls, count: int, act: Callable[[], None]) -> "Taken":
        act()
        before = time.process_time()
        return cls(timed(count, act), (time.process_time() - before) / (count + 1))

    @property
    def p95(self) -> float:
        return quantiles(self.times, n=20)[-1]

    def __str__(self) -> str:
        spent = f"processor {self.processor * 1000:5.1f} ms"
        return f"p50 {median(self.times) * 1000:6.1f} ms   p95 {self.p95 * 1000:6.1f} ms   {spent}"


def floor(world: World, ids: list[str], requests: int) -> float:
    """Median seconds of the same rows by key, without HTTP."""

    def fetch() -> None:
        with world.database.read() as session:
            list(session.scalars(sa.select(Job).where(Job.id.in_(ids))))

    return median(timed(requests, fetch))


def timed(count: int, act: Callable[[], None]) -> list[float]:
    act()
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        act()
        taken.append(time.perf_counter() - started)
    return taken


def _answer(world: World, path: str, params: dict[str, Any] | None = None) -> None:
    answer = world.client.get(path, params=params)
    assert answer.status_code == 200, answer.text


if __name__ == "__main__":
    sys.exit(main())
