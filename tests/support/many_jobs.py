"""Inserts many jobs with labels and values, for the list of jobs and the table of runs."""

import time
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from service.core.ids import new_job_id
from service.db.models import Job, JobLabel
from service.jobs.table.value_repository import ValueRepository
from service.jobs.table.values import Named, spec_values
from service.metrics.summaries import METRIC_KINDS
from tests.support.world import SPEC, World
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import dump_spec, parse_spec

METRICS = 20
HALF_LABELS = ("even", "odd")
TERMINAL_STATUSES = ("succeeded", "succeeded", "succeeded", "failed", "cancelled")
NOT_ALL_VISIBLE = (
    "SELECT sum(relpages - relallvisible) FROM pg_class WHERE relname IN ('jobs', 'job_labels', 'job_values')"
)


def fill(world: World, count: int, *, values: bool = True) -> None:
    """Insert jobs of 20 users with 50 names over a year: 1 in 10,000 is lost, 1 in 1,000 has a rare label.

    Half of the jobs have one label and the other half another; the query for both has no result and is the slowest.
    `values`: whether the jobs have the values of fields and metrics by which the table of runs filters and sorts.
    """
    spec = dump_spec(resolve(parse_spec(SPEC), Site()))
    created_at = world.clock()
    with world.database.read() as session:
        before = session.scalar(sa.select(sa.func.max(Job.pk))) or 0
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
    if values:
        add_values(world, spec, before)
    world.clock.now = created_at
    gather_statistics(world)


def add_values(world: World, spec: dict[str, Any], before: int) -> None:
    """Insert the values of all jobs with keys above `before`: every field of the spec, and the summaries of 20 metrics.

    The learning rate has 7 values, the seed 5, the width a different value for each job, and the metrics random ones.
    One job in 200 has no metrics, and one in 1,000 has a rare parameter.
    """
    mixed = "(({0} * 2654435761) % 1000003)"
    numbers: dict[Named, str] = {
        ("spec", "optimizer.lr"): "(1 + j.pk % 7) / 10000.0",
        ("spec", "seed"): "j.pk % 5",
        ("parameter", "width"): mixed.format("j.pk"),
    }
    for number in range(METRICS):
        name = "eval/loss" if number == 0 else f"metric/{number}"
        value = mixed.format(f"(j.pk + {number})")
        for kind in METRIC_KINDS[:-1]:  # every value is finite
            numbers[kind, name] = value
    plain = {named: value for named, value in spec_values(spec).items() if named not in numbers}
    rare: Named = ("parameter", "rare")
    with world.database.write() as session:
        keys = ValueRepository(session).add_keys([*numbers, *plain, rare])
    cast = "double precision" if world.database.dialect == "postgresql" else "REAL"
    insert = "INSERT INTO job_values (job_pk, key_pk, number, text) SELECT j.pk,"
    jobs = f"FROM jobs j WHERE j.pk > {before}"
    with world.database.write() as session:
        for named, stored in plain.items():
            values = {"key": keys[named], "number": stored.number, "text": stored.text}
            typed = f"CAST(:number AS {cast}), CAST(:text AS VARCHAR(200))"
            session.execute(sa.text(f"{insert} :key, {typed} {jobs}"), values)
        for named, sql in numbers.items():
            where = "" if named[0] in ("spec", "parameter") else " AND j.pk % 200 <> 1"
            session.execute(sa.text(f"{insert} {keys[named]}, CAST({sql} AS {cast}), NULL {jobs}{where}"))
        session.execute(sa.text(f"{insert} {keys[rare]}, 1, NULL {jobs} AND j.pk % 1000 = 3"))


def gather_statistics(world: World) -> None:
    """Gather statistics, and on Postgres vacuum, as autovacuum would within a minute, to allow index-only scans."""
    engine = sa.create_engine(world.database.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if world.database.dialect == "sqlite":
            connection.execute(sa.text("ANALYZE"))
            return
        # An autovacuum that started in the meantime can leave pages that are not marked as all-visible.
        for _ in range(20):
            connection.execute(sa.text("VACUUM ANALYZE jobs, job_labels, job_values"))
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
