"""However a list is filtered, what the database reads is a part of an index, and not the table."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa

from service.core.ids import new_job_id
from service.db.models import Job, JobLabel
from service.db.paging import PageRequest
from service.jobs import listing as repository
from tests.support.world import World

JOBS = 3000
RARE = 30
"""Of a kind, one in a hundred."""


@pytest.fixture
def many(world: World) -> World:
    """Half of the jobs have one label, half another; one in a hundred has a name, a creator, a status, a sweep."""
    rows, labels = [], []
    for number in range(JOBS):
        rare = number % (JOBS // RARE) == 7
        moment = world.clock() + timedelta(seconds=number)
        row = {
            "id": new_job_id(moment),
            "name": "rare" if rare else "run",
            "status": "lost" if rare else "succeeded",
            "created_by": "somebody" if rare else "everybody",
            "sweep_id": "swp_" + "7" * 26 if rare else None,
            "spec": {"filler": "x" * 500},
            "labels": {},
            "created_at": moment,
            "updated_at": moment,
        }
        rows.append(row)
        kinds = ["half", "team"] if number % 2 else ["other", "team"]
        labels += [{"key": key, "value": "yes", "job_id": row["id"]} for key in [*kinds, *["few"] * rare]]
    with world.database.write() as session:
        session.execute(sa.insert(Job), rows)
        session.execute(sa.insert(JobLabel), labels)
    return world


FILTERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "status": {"status": "lost"},
    "statuses": {"status": ["lost", "failed"]},
    "name": {"name": "rare"},
    "creator": {"created_by": "somebody"},
    "sweep": {"sweep": "swp_" + "7" * 26},
    "label": {"metadata[few]": "yes"},
    "labels": {"metadata[team]": "yes", "metadata[few]": "yes", "metadata[half]": "yes"},
    "all": {
        "status": "lost",
        "name": "rare",
        "created_by": "somebody",
        "sweep": "swp_" + "7" * 26,
        "metadata[few]": "yes",
        "metadata[team]": "yes",
    },
    "common with rare": {"status": "succeeded", "metadata[team]": "yes", "created_by": "somebody"},
    "month": {"created_after": "2025-01-01T00:00:00Z", "created_before": "2026-01-01T00:00:10Z", "name": "run"},
}


def test_a_page_reads_a_part_of_an_index(many: World) -> None:
    for (name, wanted), order in product(FILTERS.items(), ("asc", "desc")):
        with _statements() as told:
            answer = many.client.get("/v1/jobs", params={**wanted, "order": order})
        assert answer.status_code == 200, answer.text
        asked = [(statement, values) for statement, values in told if " job" in statement and "SELECT" in statement]
        assert any("LIMIT" in statement for statement, _ in asked), "the page's own statement is among them"
        for statement, values in asked:
            assert _scans(many, statement, values) == [], (name, order, statement)


def test_that_labels_never_meet_is_found_without_reading_a_row(many: World) -> None:
    with _statements() as told:
        answer = many.client.get("/v1/jobs", params={"metadata[half]": "yes", "metadata[other]": "yes"})
    assert answer.json()["data"] == []
    (page,) = [(statement, values) for statement, values in told if "CROSS JOIN" in statement]
    if many.database.dialect == "sqlite":
        plan = [line[-1] for line in _explained(many, "EXPLAIN QUERY PLAN ", *page)]
        assert [line for line in plan if "COVERING" in line] == plan[:2], plan
    else:
        assert _touched(_plan(many, *page), "job") == 0


@pytest.mark.parametrize(("other", "found"), [("other", 0), ("few", 20), ("team", 20)])
def test_long_stretches_are_first_asked_whether_they_meet(
    many: World, monkeypatch: pytest.MonkeyPatch, other: str, found: int
) -> None:
    monkeypatch.setattr(repository, "_LONG", {"sqlite": 10, "postgresql": 10})
    creator = "somebody" if other == "few" else "everybody"
    wanted = {"metadata[half]": "yes", f"metadata[{other}]": "yes", "created_by": creator}
    with _statements() as told:
        answer = many.client.get("/v1/jobs", params=wanted)
    assert len(answer.json()["data"]) == found
    asked = [(statement, values) for statement, values in told if "INTERSECT" in statement]
    if many.database.dialect != "sqlite":
        assert asked == [], "one walk finds whether they meet, and where"
        return
    for statement, values in asked:
        assert _scans(many, statement, values) == []
    assert len(asked) == 1
    assert any("CROSS JOIN" in statement for statement, _ in told) is (found > 0)


@pytest.mark.parametrize(("other", "found"), [("other", 0), ("few", 20), ("team", 20)])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_postgres_walks_long_stretches_side_by_side(
    many: World, monkeypatch: pytest.MonkeyPatch, other: str, found: int, order: str
) -> None:
    if many.database.dialect == "sqlite":
        pytest.skip("asked whether they meet instead")
    monkeypatch.setattr(repository, "_LONG", {"sqlite": 10, "postgresql": 10})
    wanted = {"metadata[half]": "yes", f"metadata[{other}]": "yes", "status": ["lost", "failed"], "order": order}
    everyone = {"metadata[half]": "yes", f"metadata[{other}]": "yes", "created_by": "everybody", "order": order}
    for filters in (wanted, everyone):
        with _statements() as told:
            ids = [job["id"] for job in many.client.get("/v1/jobs", params=filters).json()["data"]]
        expected = found if filters is wanted or other != "few" else 0
        assert (ids, len(ids)) == (sorted(ids, reverse=order == "desc"), expected)
        (walk,) = [place for place, (statement, _) in enumerate(told) if "OFFSET 0" in statement]
        (off, _), (statement, values), (on, _) = told[walk - 1 : walk + 2]
        plan = json.dumps(_plan(many, statement, values, first=off))
        assert ("Merge Join" in plan, "Nested Loop" in plan, "Seq Scan" in plan) == (True, False, False), plan
        assert on == off.replace("'off'", "NULL"), "the next list is planned as ever"


def test_how_postgres_plans_is_as_before_after_a_list(many: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if many.database.dialect == "sqlite":
        pytest.skip("it has no such settings")
    monkeypatch.setattr(repository, "_LONG", {"sqlite": 10, "postgresql": 10})
    wanted = repository.JobFilter(metadata={"half": "yes", "team": "yes"})
    with many.database.read() as session:
        assert len(repository.JobLists(session).page(PageRequest(limit=2), wanted)[0]) == 2
        ways = [session.scalar(sa.text(f"SHOW {way}")) for way in repository._OTHER_WAYS]
    assert ways == ["on"] * len(ways)


def _scans(world: World, statement: str, values: Any) -> list[str]:
    """What of the plan reads more than it should."""
    if world.database.dialect == "sqlite":
        plan = [str(line[-1]) for line in _explained(world, "EXPLAIN QUERY PLAN ", statement, values)]
        # Without a filter a page is the end of an index, which SQLite calls a scan of it.
        allowed = ["SCAN found", "SCAN CONSTANT ROW", "SCAN job USING INDEX sqlite_autoindex_jobs_1"]
        return [line for line in plan if "TEMP B-TREE" in line or ("SCAN" in line and line not in allowed)]
    plan = _plan(world, statement, values)
    read = max(_touched(plan, alias) for alias in ("job", "t0"))
    return [json.dumps(plan)] if read > 3 * RARE or "Seq Scan" in json.dumps(plan) else []


def _explained(world: World, how: str, statement: str, values: Any, first: str | None = None) -> list[Any]:
    with world.database.read() as session:
        session.connection()
        if first is not None:
            session.execute(sa.text(first))
        if world.database.dialect != "sqlite":
            session.execute(sa.text("SET LOCAL enable_seqscan = off"))
        return list(session.connection().exec_driver_sql(how + statement, values).all())


def _plan(world: World, statement: str, values: Any, first: str | None = None) -> Any:
    with world.database.write() as session:
        session.execute(sa.text("ANALYZE jobs, job_labels"))
    ((found,),) = _explained(world, "EXPLAIN (ANALYZE, FORMAT JSON) ", statement, values, first)
    return found[0]["Plan"]


def _touched(plan: Any, alias: str) -> float:
    """Rows of this table that are looked at."""
    own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    below = sum(_touched(part, alias) for part in plan.get("Plans", ()))
    return below + (own if plan.get("Alias") == alias else 0)


@contextmanager
def _statements() -> Iterator[list[tuple[str, Any]]]:
    told: list[tuple[str, Any]] = []

    def tell(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        told.append((statement, values))

    sa.event.listen(sa.Engine, "before_cursor_execute", tell)
    try:
        yield told
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", tell)
