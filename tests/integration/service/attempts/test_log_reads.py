"""The cost of reading a log depends on what is read, not on how the log was written."""

import pytest
import sqlalchemy as sa

from service.db.models import LogChunk, LogStream
from tests.support.cpu_limit import at_most
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")

LINE = b"x" * 49 + b"\n"


def write_chunks(world: World, count: int, chunk: bytes = LINE) -> str:
    """Return a job whose rank 0 has a log of `count` chunks."""
    job = world.submit()
    worker = world.start(job)
    worker.log("0", 0, chunk)
    with world.database.write() as session:
        first = session.scalars(sa.select(LogChunk).where(LogChunk.attempt_id == worker.attempt_id)).one()
        rows = [
            {
                "job_pk": first.job_pk,
                "attempt_id": first.attempt_id,
                "rank": "0",
                "offset": number * len(chunk),
                "data": chunk,
                "sequence": first.sequence,
            }
            for number in range(1, count)
        ]
        session.execute(sa.insert(LogChunk), rows)
        size = {"size": count * len(chunk)}
        session.execute(sa.update(LogStream).where(LogStream.attempt_id == worker.attempt_id).values(size))
    return job


def test_tail_of_many_small_chunks_takes_linear_time(world: World) -> None:
    job = write_chunks(world, 40_000)
    with at_most(5):
        answer = world.client.get(f"/v1/jobs/{job}/logs?tail=100000")
    assert (len(answer.content), answer.headers["x-trainyard-offset"]) == (40_000 * 50, "0")


def test_tail_begins_within_a_chunk(world: World) -> None:
    job = write_chunks(world, 3, b"a\nb\nc\n")
    answer = world.client.get(f"/v1/jobs/{job}/logs?tail=4")
    assert (answer.content, answer.headers["x-trainyard-offset"]) == (b"c\na\nb\nc\n", "10")
    assert world.client.get(f"/v1/jobs/{job}/logs?tail=0").headers["x-trainyard-offset"] == "18"


def test_page_of_a_log_reads_only_its_chunks(world: World) -> None:
    job = write_chunks(world, 60, b"y" * 256 * 1024)
    rows: list[int] = []

    def count(_row: LogChunk, _context: object) -> None:
        rows.append(1)

    sa.event.listen(LogChunk, "load", count)
    try:
        answer = world.client.get(f"/v1/jobs/{job}/logs?offset={20 * 256 * 1024}")
    finally:
        sa.event.remove(LogChunk, "load", count)
    assert len(answer.content) == 4 * 1024 * 1024
    assert len(rows) <= 24
