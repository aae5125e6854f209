"""A row that cannot be read or shown costs its own message, and no other message of any stream."""

import pytest
import sqlalchemy as sa

from service.streaming.broadcaster import StreamOffset
from service.streaming.sources import GlobalSource, JobSource
from tests.support.world import World


@pytest.mark.databases("sqlite")
def test_unreadable_row_ends_no_stream_of_other_jobs(world: World) -> None:
    bad, good = world.submit(name="bad"), world.submit(name="good")
    world.start(bad).checkpoint(1)
    GlobalSource(world.database, world.settings.runs, world.clock).head()
    world.worker(good).claim()
    with world.database.write() as session:
        # Decoding fails while the rows are fetched, before any message is built.
        query = "UPDATE events SET data = '{' WHERE type = 'created' AND job_pk IN (SELECT pk FROM jobs WHERE id = :id)"
        assert session.execute(sa.text(query), {"id": bad}).rowcount == 1
    source = GlobalSource(world.database, world.settings.runs, world.clock)
    source.head()
    text = "".join(item.text for item in source.read(StreamOffset(0), True).items)
    assert good in text
    assert '"status":"running"' in text


def test_rows_that_cannot_be_shown_are_skipped_once(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.checkpoint(1)
    worker.metrics([("a", 1, 1.0)])
    with world.database.write() as session:
        session.execute(sa.text("UPDATE events SET data = '{}' WHERE type = 'status'"))
        session.execute(sa.text("UPDATE checkpoints SET digest = '', world_size = -1"))
    for source in (
        GlobalSource(world.database, world.settings.runs, world.clock),
        JobSource(world.database, world.settings.runs, world.clock, job),
    ):
        source.head()
        update = source.read(StreamOffset(0), True)
        assert "event: metrics" in "".join(item.text for item in update.items)
        assert not source.read(update.offset, True).items, "the reader is past the rows"
