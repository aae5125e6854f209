"""Everything that reads what workers report: a report that is accepted must break none of it."""

from service.streaming.broadcaster import StreamOffset
from service.streaming.sources import GlobalSource, JobSource
from tests.support.world import World


def read_streams(world: World, job: str) -> str:
    """Return what the stream of all jobs and that of the job send from the start on."""
    text = ""
    global_source = GlobalSource(world.database, world.settings.runs, world.clock)
    global_source.newest_offset()
    for source in (global_source, JobSource(world.database, world.settings.runs, world.clock, job)):
        offset, more = StreamOffset(0), True
        while more:
            update = source.read(offset, True)
            text += "".join(item.text for item in update.items)
            offset, more = update.offset, update.more
    return text


def check_readers(world: World, job: str) -> None:
    """Read the job by every route, page and stream; each must answer."""
    keys = list(world.job(job)["metrics"])[:20]
    for path in (
        "/v1/jobs",
        f"/v1/jobs/{job}/metrics",
        f"/v1/jobs/{job}/metrics?format=csv",
        f"/v1/jobs/{job}/metrics?x=time",
        f"/v1/jobs/{job}/points",
        f"/v1/jobs/{job}/events?limit=200",
        f"/v1/jobs/{job}/attempts",
        f"/v1/jobs/{job}/checkpoints",
        f"/v1/jobs/{job}/logs",
        f"/v1/jobs/{job}/artifacts",
    ):
        answer = world.client.get(path)
        assert answer.status_code == 200, (path, answer.text[:300])
    answer = world.client.get("/v1/metrics", params={"job": job, "keys": keys or "train/loss"})
    assert answer.status_code == 200, answer.text[:300]
    if world.job(job)["status"] in ("succeeded", "failed", "cancelled"):
        assert world.client.get(f"/v1/jobs/{job}/stream").status_code == 200
    browser = world.new_client(None)
    browser.post("/sign-in", data={"token": world.token}, headers={"Origin": "http://localhost"})
    for path in ("/jobs", f"/jobs/{job}", f"/compare?job={job}"):
        answer = browser.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 200, (path, answer.text[:300])
    assert "event: status" in read_streams(world, job)
