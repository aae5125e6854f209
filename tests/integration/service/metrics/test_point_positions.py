"""Points that a program logs again: any delivery of the same records leaves the same points, samples and summaries."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from service.metrics.downsampling import downsampler
from service.metrics.downsampling.buckets import Sample, sample_buckets
from service.metrics.downsampling.downsampler import downsample_job
from service.metrics.downsampling.levels import LEVELS, bucket_bits
from service.metrics.ingest.decode import PointBatch, batch_from_model
from service.metrics.ingest.repository import InsertResult
from service.metrics.ingest.writer import PointWriter
from service.metrics.repository import CurveRepository
from service.metrics.summaries import METRIC_KINDS, refresh_job, summaries_of
from service.metrics.summary_repository import SummaryRepository
from tests.support.world import World
from trainyard.contract.wire.reports import MetricsBatch, Point, SpoolRecords

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = ("a", "b")
STEPS = (*range(9), 70, 71, 600, 5000)
"""In several buckets of the lowest levels."""
_numbers = count()

Logged = tuple[str, int, float]


@dataclass(frozen=True)
class Record:
    """A record of a spool."""

    number: int
    points: Sequence[Logged]
    restarts: Sequence[str] = ()


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    """Return records of which some begin curves again; their numbers have gaps, as in a spool with events."""
    point = st.tuples(st.sampled_from(KEYS), st.sampled_from(STEPS), st.integers(-9, 9).map(float))
    contents = draw(st.lists(st.lists(point, max_size=16), min_size=1, max_size=6))
    gaps = draw(st.lists(st.integers(1, 3), min_size=len(contents), max_size=len(contents)))
    restarts = st.sampled_from(((), (), (), ("a",), ("a", "b")))
    numbers = [sum(gaps[: index + 1]) for index in range(len(contents))]
    return [Record(number, points, draw(restarts)) for number, points in zip(numbers, contents, strict=True)]


@st.composite
def deliveries(draw: st.DrawFn, spool: list[Record]) -> list[list[list[Record]]]:
    """Return groups of requests with all records, some of them repeatedly and in any order."""
    repeated = draw(st.lists(st.sampled_from(spool), max_size=6))
    order = draw(st.permutations([*spool, *repeated]))
    requests: list[list[Record]] = []
    for record in order:
        joins = requests and not record.restarts and not requests[-1][-1].restarts and draw(st.booleans())
        if joins and record not in requests[-1]:
            requests[-1] = sorted([*requests[-1], record], key=lambda one: one.number)
        else:
            requests.append([record])
    groups: list[list[list[Record]]] = []
    for request in requests:
        if groups and draw(st.booleans()):
            groups[-1].append(request)
        else:
            groups.append([request])
    return groups


def final(spool: Iterable[Record]) -> dict[tuple[str, int], float]:
    """Return the values that a program's records leave, in order."""
    values: dict[tuple[str, int], float] = {}
    for record in spool:
        for name in record.restarts:
            values = {position: value for position, value in values.items() if position[0] != name}
        for name, step, value in record.points:
            values[name, step] = value
    return values


def batch(request: Sequence[Record], prefix: str, spool: int = 0) -> PointBatch:
    points = [Point(key=prefix + k, step=s, value=v, time=NOW) for one in request for k, s, v in one.points]
    source = SpoolRecords(spool=spool, records=tuple((one.number, len(one.points)) for one in request))
    restarts = tuple(prefix + name for one in request for name in one.restarts)
    return batch_from_model(
        MetricsBatch(execution=1, resumed_from_step=0, points=tuple(points), source=source, restarts=restarts)
    )


class Stored:
    """What the database has of one job's metrics with a prefix."""

    def __init__(self, world: World, job_pk: int, prefix: str) -> None:
        self.world, self.job_pk, self.prefix = world, job_pk, prefix

    def _rows(self, query: str, **values: Any) -> list[Any]:
        with self.world.database.read() as session:
            bound = {"job": self.job_pk, "prefix": f"{self.prefix}%", **values}
            return list(session.execute(sa.text(query), bound))

    def points(self) -> dict[tuple[str, int], float]:
        rows = self._rows(
            "SELECT name, step, value FROM points p JOIN metric_keys k ON k.pk = p.key_pk"
            " WHERE job_pk = :job AND name LIKE :prefix"
        )
        return {(name.removeprefix(self.prefix), step): value for name, step, value in rows}

    def samples(self, name: str, level: int) -> list[Sample]:
        rows = self._rows(
            "SELECT step, value, special, time FROM downsampled_points p JOIN metric_keys k ON k.pk = p.key_pk"
            " WHERE job_pk = :job AND name = :name AND level = :level ORDER BY step",
            name=self.prefix + name,
            level=level,
        )
        return [Sample(*row) for row in rows]

    def latest(self) -> dict[str, float]:
        """Return what lists of jobs show."""
        ((latest,),) = self._rows("SELECT CAST(latest AS TEXT) FROM jobs WHERE pk = :job AND :prefix <> ''")
        named = json.loads(latest).items()
        return {name.removeprefix(self.prefix): one for name, one in named if name.startswith(self.prefix)}

    def repeats(self) -> dict[str, int]:
        rows = self._rows(
            "SELECT name, repeats FROM curve_revisions r JOIN metric_keys k ON k.pk = r.key_pk"
            " WHERE job_pk = :job AND name LIKE :prefix AND repeats > 0"
        )
        return {name.removeprefix(self.prefix): n for name, n in rows}

    def summaries(self) -> dict[str, tuple[float, float, float, int, int]]:
        with self.world.database.read() as session:
            known = summaries_of(SummaryRepository(session).values.values_of(self.job_pk, METRIC_KINDS))
        named = {name.removeprefix(self.prefix): one for name, one in known.items() if name.startswith(self.prefix)}
        return {n: (o.last, o.low, o.high, o.low_step, o.high_step) for n, o in named.items()}  # type: ignore[misc]


def summary(values: dict[int, float]) -> tuple[float, float, float, int, int]:
    low, high = min(values.values()), max(values.values())
    steps = sorted(values)
    first = [next(step for step in steps if values[step] == one) for one in (low, high)]
    return values[steps[-1]], low, high, first[0], first[1]


def check_samples(stored: Stored, expected: dict[tuple[str, int], float]) -> None:
    """Check that each level has the samples of these points, computed from scratch."""
    with stored.world.database.read() as session:
        cursor = CurveRepository(session, stored.world.database).cursor(stored.job_pk)
    for name in KEYS:
        series = [Sample(s, v, 0, 10**6 * int(NOW.timestamp())) for (k, s), v in expected.items() if k == name]
        for level in range(LEVELS) if cursor else ():
            chosen = sample_buckets(sorted(series), bucket_bits(level, cursor.spacing_bits))
            assert stored.samples(name, level) == chosen, (name, level)


def downsample_all(world: World, job_pk: int) -> None:
    while downsample_job(world.database, job_pk):
        pass


@pytest.fixture
def running(world: World) -> tuple[str, int]:
    """The attempt and the number of a running job."""
    job = world.submit()
    attempt = world.start(job).attempt_id
    with world.database.read() as session:
        return attempt, session.execute(sa.text("SELECT pk FROM jobs WHERE id = :id"), {"id": job}).scalar_one()


@pytest.mark.cpu_seconds(10)
@pytest.mark.parametrize("examples", [15, pytest.param(60, marks=pytest.mark.heavy)])
def test_any_delivery_of_the_same_records_stores_the_same(
    world: World, running: tuple[str, int], examples: int
) -> None:
    attempt, job_pk = running
    writer = PointWriter(world.database)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        spool = data.draw(records())
        stored = Stored(world, job_pk, f"{next(_numbers)}/")
        for group in data.draw(deliveries(spool)):
            writer.write([(attempt, batch(request, stored.prefix)) for request in group], NOW)
            if data.draw(st.booleans()):
                downsample_job(world.database, job_pk)
            if data.draw(st.booleans()):
                refresh_job(world.database, job_pk)
        expected = final(spool)
        assert stored.points() == expected
        downsample_all(world, job_pk)
        check_samples(stored, expected)
        refresh_job(world.database, job_pk)
        by_name = {name: {s: v for (k, s), v in expected.items() if k == name} for name in KEYS}
        summaries = {name: summary(values) for name, values in by_name.items() if values}
        assert stored.summaries() == summaries
        assert stored.latest() == {name: last for name, (last, *_) in summaries.items()}

    check()


def test_a_replaced_extreme_that_is_no_extreme_any_more_is_no_sample(world: World, running: tuple[str, int]) -> None:
    attempt, job_pk = running
    writer, stored = PointWriter(world.database), Stored(world, job_pk, "")
    first = Record(1, [("a", step, value) for step, value in enumerate((0.0, 5.0, 5.0, -9.0, 5.0, 5.0, 5.0, 5.0, 9.0))])
    second = Record(2, [("a", step, value) for step, value in enumerate((1.0, 8.0, 2.0, 0.0, 1.0), 1)])
    for record in (first, second):
        writer.write([(attempt, batch([record], ""))], NOW)
        downsample_all(world, job_pk)
        check_samples(stored, final([first, second] if record is second else [first]))


@pytest.mark.parametrize("downsampled", [False, True])
def test_points_deleted_while_they_are_downsampled_leave_no_samples(
    world: World, running: tuple[str, int], monkeypatch: pytest.MonkeyPatch, downsampled: bool
) -> None:
    attempt, job_pk = running
    writer, stored = PointWriter(world.database), Stored(world, job_pk, "")
    spool = [
        Record(1, [("b", 1, 1.0)]),
        Record(2, [("a", 1, 1.0), ("a", 600, 1.0)]),
        Record(3, [("a", 9, 2.0)], ("a",)),
    ]
    writer.write([(attempt, batch(spool[:1], ""))], NOW)
    if downsampled:
        downsample_all(world, job_pk)
    writer.write([(attempt, batch(spool[1:2], ""))], NOW)
    interrupted = downsampler._changes

    def restart_after(*arguments: Any) -> Any:
        changes = interrupted(*arguments)
        monkeypatch.setattr(downsampler, "_changes", interrupted)
        writer.write([(attempt, batch(spool[2:], ""))], NOW)
        return changes

    monkeypatch.setattr(downsampler, "_changes", restart_after)
    assert downsample_job(world.database, job_pk) == 0
    downsample_all(world, job_pk)
    check_samples(stored, final(spool))


def test_values_that_arrive_after_retention_replace_samples(world: World, running: tuple[str, int]) -> None:
    attempt, job_pk = running
    writer, stored = PointWriter(world.database), Stored(world, job_pk, "")
    writer.write([(attempt, batch([Record(1, [("a", step, 5.0 + step) for step in range(3)])], ""))], NOW)
    downsample_all(world, job_pk)
    with world.database.write() as session:
        curves = CurveRepository(session, world.database)
        curves.mark_points_deleted(job_pk)
        assert curves.delete_points(job_pk, 10**6, 10**6)
    assert stored.points() == {}
    writer.write([(attempt, batch([Record(2, [("a", 1, 9.0), ("a", 7, -1.0)])], ""))], NOW)
    refresh_job(world.database, job_pk)
    downsample_all(world, job_pk)
    for level in range(LEVELS):
        assert [one[:2] for one in stored.samples("a", level)] == [(0, 5.0), (1, 9.0), (7, -1.0)]
    writer.write([(attempt, batch([Record(3, [("a", 1, 2.0)], ("a",))], ""))], NOW)
    refresh_job(world.database, job_pk)
    assert stored.summaries() == {"a": (2.0, 2.0, 2.0, 1, 1)}
    downsample_all(world, job_pk)
    assert [one[:2] for one in stored.samples("a", 0)] == [(1, 2.0)]


def test_replaced_values_are_counted_and_repeated_deliveries_are_not(world: World, running: tuple[str, int]) -> None:
    attempt, job_pk = running
    writer = PointWriter(world.database)
    folds = [Record(fold, [("loss", step, float(fold)) for step in range(3)]) for fold in range(3)]

    def send(request: Sequence[Record], spool: int = 0) -> tuple[int, int]:
        (outcome,) = writer.write([(attempt, batch(request, "", spool))], NOW)
        assert isinstance(outcome, InsertResult)
        return outcome.stored, outcome.duplicates

    assert send(folds[:1]) == (3, 0)
    assert send(folds[:1]) == (0, 3)
    assert send(folds) == (9 - 3, 3)
    assert send(folds) == (0, 9)
    assert send([Record(9, [("loss", 0, 9.0)])], spool=1) == (0, 1), "of two spools, the first stays"
    stored = Stored(world, job_pk, "")
    assert stored.points() == {("loss", step): 2.0 for step in range(3)}
    assert stored.repeats() == {"loss": 6}


def test_without_positions_the_first_value_stays(world: World, running: tuple[str, int]) -> None:
    attempt, job_pk = running
    rows = [("loss", 0, 1.0, 0, 0, None), ("loss", 0, 2.0, 0, 0, None)]
    writer = PointWriter(world.database)
    writer.write([(attempt, PointBatch(1, 0, rows[:1])), (attempt, PointBatch(1, 0, rows))], NOW)
    writer.write([(attempt, batch([Record(3, [("loss", 0, 3.0)])], ""))], NOW)
    assert Stored(world, job_pk, "").points() == {("loss", 0): 1.0}
