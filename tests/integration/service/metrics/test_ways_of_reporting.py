"""Generated batches of points, reported in four ways: the answers agree, and the same rows are stored.

The ways are one request for the batch, one request for each point, one spool record for the batch, and one record for
each point.
"""

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from service.core.untrusted_files import UntrustedFiles
from service.reconciler.spool_ingest import SpoolIngest
from tests.support.readers import check_readers
from tests.support.world import FakeWorker, World

pytestmark = pytest.mark.databases("sqlite")

BATCHES = 40

VALID = {
    "step": ["0", "1", "7", "9007199254740992", "12345678901"],
    "value": [
        "0",
        "-0.0",
        "1",
        "1.5",
        "1e308",
        "5e-324",
        "1E-400",
        '"NaN"',
        '"Infinity"',
        '"-Infinity"',
        "123456789123456789",
    ],
    "time": [
        '"2026-01-01T00:00:00Z"',
        '"2026-01-01T00:00:00.123456789Z"',
        '"2100-06-01T10:00:00+14:00"',
        '"1970-01-01T00:00:00Z"',
    ],
}
ODD = {
    "step": ["-1", "1.0", "1.5", "1e3", "9007199254740993", "9" * 400, '"3"', '"x"', "true", "null", "[]", "-0"],
    "value": [
        "NaN",
        "Infinity",
        "1e400",
        "-1e999",
        '"1e3"',
        '"nan"',
        '"x"',
        "true",
        "null",
        "[]",
        "{}",
        "01",
        "1.",
        "9" * 400,
    ],
    "time": [
        '"0001-01-01T00:00:00+10:00"',
        '"9999-12-31T23:59:59-10:00"',
        '"2026-01-01T00:00:00"',
        '"2026-01-01 00:00:00+00:00"',
        '"2026-01-01T00:00:00z"',
        '"2026-02-30T00:00:00Z"',
        '"2026-01-01T24:00:00Z"',
        '"2026-01-01T00:00:60Z"',
        '"2026-01-01T00:00:00+99:00"',
        '"2026-01-01"',
        '"1700000000"',
        "1700000000",
        "1e12",
        '""',
        "null",
    ],
}
KEYS = ["a", "a", "b", "x" * 200, "loss/é", "", "a b", "a\\u0000", "\\ud800", "a\\n", "A/b.c-d_e", "\\u0061"]


def generate_point(draw: random.Random, prefix: str) -> str:
    """Return the JSON of one point: mostly valid, with odd values, missing, repeated and unknown fields."""
    key = draw.choice(KEYS) if draw.random() < 0.15 else draw.choice("abc")
    fields = [("key", f'"{prefix}{key}"')]
    for name in ("step", "value", "time"):
        fields.append((name, draw.choice(ODD[name] if draw.random() < 0.12 else VALID[name])))
    if draw.random() < 0.05:
        fields.pop(draw.randrange(len(fields)))
    if draw.random() < 0.05:
        name = draw.choice(("step", "value", "time"))
        fields.append((name, draw.choice(VALID[name])))
    if draw.random() < 0.03:
        fields.append(("extra", "1"))
    if draw.random() < 0.3:
        draw.shuffle(fields)
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields) + "}"


def batch_of(points: list[str]) -> bytes:
    return ('{"execution":1,"resumed_from_step":0,"points":[' + ",".join(points) + "]}").encode()


def source_of(record: int, points: int) -> bytes:
    """Return the field that the sender adds to a body."""
    return b',"source":{"spool":0,"records":[[%d,%d]]}' % (record, points)


class ObservedIngest(SpoolIngest):
    """Lists what is put aside."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.items: list[str] = []

    def _reject(self, item: str, error: Exception) -> None:
        self.items.append(item)
        super()._reject(item, error)


@dataclass
class Job:
    """A job to which all batches are reported in one way."""

    world: World
    id: str
    worker: FakeWorker

    def post(self, body: bytes, source: bytes = b"") -> bool:
        body = body[:-1] + source + b"}"
        answer = self.worker.client.post(f"/v1/attempts/{self.worker.attempt_id}/metrics", content=body)
        assert answer.status_code in (200, 400, 422), (answer.status_code, body)
        return bool(answer.status_code == 200)

    def ingest(self, bodies: list[bytes]) -> set[int]:
        """Ingest the bodies as spool records; return the numbers of those that were rejected."""
        lines = [
            b'{"seq": %d, "crc": "%08x", "kind": "metrics", "body": %s}\n' % (number, zlib.crc32(body), body)
            for number, body in enumerate(bodies)
        ]
        spool = self.world.folder(self.id).spool_file(1)
        spool.parent.mkdir(parents=True, exist_ok=True)
        spool.write_bytes(b"".join(lines))
        ingest = ObservedIngest(
            database=self.world.database,
            attempt_id=self.worker.attempt_id,
            files=UntrustedFiles(self.world.settings.runs),
            folder=self.world.folder(self.id),
            now=self.world.clock(),
            log_limit=1000,
            count=lambda _kind, _amount: None,
        )
        assert ingest.run(self.world.clock(), 60.0)
        matches = [re.match(r"execution-\d+\.jsonl, record (\d+)", item) for item in ingest.items]
        assert all(matches), ingest.items
        return {int(match[1]) for match in matches if match}

    def rows(self) -> list[tuple[object, ...]]:
        query = sa.text(
            "SELECT k.name, p.step, p.execution, p.value, p.special, p.time FROM points p"
            " JOIN metric_keys k ON k.pk = p.key_pk JOIN jobs j ON j.pk = p.job_pk WHERE j.id = :job ORDER BY 1, 2"
        )
        with self.world.database.read() as session:
            return [tuple(row) for row in session.execute(query, {"job": self.id})]


def new_jobs(world: World) -> Iterator[Job]:
    while True:
        job = world.submit()
        yield Job(world, job, world.start(job))


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60))])
def test_all_ways_of_reporting_points_agree(world: World, seed: int) -> None:
    draw = random.Random(seed)
    jobs = new_jobs(world)
    whole, single, spooled_whole, spooled_single = (next(jobs) for _ in range(4))
    batches = [[generate_point(draw, f"n{n}_") for _ in range(draw.randint(1, 4))] for n in range(BATCHES)]
    known = [
        f'{{"key":"n{n}_{key}","step":99,"value":1,"time":"2026-01-01T00:00:00Z"}}'
        for n in range(0, BATCHES, 2)
        for key in "abc"
    ]
    for job in (whole, single, spooled_whole, spooled_single):
        assert job.post(batch_of(known)), "metrics that are known before are decoded by another parser"
    rejected = spooled_whole.ingest([batch_of(points) for points in batches])
    points = [(number, point) for number, points in enumerate(batches) for point in points]
    rejected_points = spooled_single.ingest([batch_of([point]) for _, point in points])
    valid = []
    for number, (batch, point) in enumerate(points):
        valid.append(single.post(batch_of([point]), source_of(number, 1)))
        assert valid[-1] == (number not in rejected_points), (batch, point)
    for number, batch in enumerate(batches):
        accepted = whole.post(batch_of(batch), source_of(number, len(batch)))
        assert accepted == (number not in rejected), batch
        assert accepted == all(ok for ok, (index, _) in zip(valid, points, strict=True) if index == number), batch
    assert whole.rows() == spooled_whole.rows()
    assert single.rows() == spooled_single.rows()
    complete = {f"n{number}_" for number in range(BATCHES) if number not in rejected}
    assert 0.2 < len(complete) / BATCHES < 0.9, "the batches are of both kinds"
    from_complete = [row for row in single.rows() if f"{str(row[0]).partition('_')[0]}_" in complete or row[1] == 99]
    assert [row for row in whole.rows() if row in from_complete] == from_complete
    for job in (whole, single):
        check_readers(world, job.id)
