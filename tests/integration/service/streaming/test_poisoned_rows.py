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
    GlobalSource(world.database, world.settings.runs, world.clock).newest_offset()
    world.worker(good).claim()
    with world.database.write() as session:
        # Decoding fails while the rows are fetched, before any message is built.
        query = "UPDATE events SET data = '{' WHERE type = 'created' AND job_pk IN (SELECT pk FROM jobs WHERE id = :id)"
        assert session.execute(sa.text(query), {"id": bad}).rowcount == 1
    source = GlobalSource(world.database, world.settings.runs, world.clock)
    source.newest_offset()
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
        source.newest_offset()
        update = source.read(StreamOffset(0), True)
        assert "event: metrics" in "".join(item.text for item in update.items)
        assert not source.read(update.offset, True).items, "the reader is past the rows"


@pytest.mark.databases("sqlite")
def test_rows_that_are_not_json_are_left_out_of_streams_and_lists(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.checkpoint(1, metrics={"eval/loss": 1.0})
    worker.checkpoint(2, metrics={"eval/loss": 2.0})
    with world.database.write() as session:
        session.execute(sa.text("UPDATE events SET data = '{' WHERE type = 'created'"))
        session.execute(sa.text("UPDATE checkpoints SET metrics = '{' WHERE step = 1"))
    source = JobSource(world.database, world.settings.runs, world.clock, job)
    text = "".join(item.text for item in source.read(StreamOffset(0), True).items)
    assert ('"step":2' in text, '"step":1' in text, "Submitted by" in text) == (True, False, False)
    (checkpoint,) = world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
    assert (checkpoint["step"], checkpoint["best"]) == (2, True)
    types = [event["type"] for event in world.client.get(f"/v1/jobs/{job}/events").json()["data"]]
    assert "status" in types
    assert "created" not in types


@pytest.mark.databases("sqlite")
def test_page_without_a_row_that_can_be_shown_leads_to_the_next(world: World) -> None:
    bad, good = world.submit(name="bad"), world.submit(name="good")
    with world.database.write() as session:
        session.execute(sa.text("UPDATE jobs SET labels = '[' WHERE id = :id"), {"id": bad})
    page = world.client.get("/v1/jobs", params={"limit": 1, "order": "asc"}).json()
    assert (page["data"], page["last_id"], page["has_more"]) == ([], bad, True)
    rest = world.client.get("/v1/jobs", params={"limit": 1, "order": "asc", "after": bad}).json()
    assert [job["id"] for job in rest["data"]] == [good]
