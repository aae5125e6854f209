"""Search in logs of any length, paging in both directions, and positions of times and steps."""

from typing import Any

import pytest
import sqlalchemy as sa

from service.db.models import LogChunk, LogStream
from service.logs import search as module
from service.logs.patterns import compile_pattern
from service.logs.search import MAX_BLOCK, LogSearch, search_log
from tests.support.cpu_limit import at_most
from tests.support.world import FakeWorker, World

CHUNK = 256 * 1024


def write_log(world: World, worker: FakeWorker, data: bytes) -> None:
    """Store a log without a request for each chunk."""
    worker.log("0", 0, data[:1])
    with world.database.write() as session:
        first = session.scalars(sa.select(LogChunk).where(LogChunk.attempt_id == worker.attempt_id)).one()
        same = {"job_pk": first.job_pk, "attempt_id": first.attempt_id, "rank": "0", "sequence": first.sequence}
        rows = [
            {**same, "offset": begin, "data": data[begin : begin + CHUNK], "received_at": world.clock()}
            for begin in range(1, len(data), CHUNK)
        ]
        session.execute(sa.insert(LogChunk), rows)
        size = {"size": len(data)}
        session.execute(sa.update(LogStream).where(LogStream.attempt_id == worker.attempt_id).values(size))


def search(world: World, job: str, **params: Any) -> Any:
    answer = world.client.get(f"/v1/jobs/{job}/logs/search", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def search_all(world: World, job: str, **params: Any) -> list[Any]:
    """All pages of a search."""
    lines, page = [], search(world, job, **params)
    lines += page["data"]
    while page["has_more"]:
        page = search(world, job, **{**params, "offset": page["next_offset"]})
        lines += page["data"]
    return lines


@pytest.mark.databases("both")
class TestSearch:
    def test_all_lines_of_20005_are_returned_in_both_orders(self, world: World) -> None:
        job = world.submit()
        lines = [f"line {number} of it" for number in range(20_005)]
        for number in (3, 7_000, 15_000, 20_004):
            lines[number] = f"WARNING {number}"
        write_log(world, world.start(job), "\n".join([*lines, ""]).encode())
        expected = ["WARNING 3", "WARNING 7000", "WARNING 15000", "WARNING 20004"]
        for params in ({"text": "warning"}, {"level": "warning"}, {"text": r"^WARN\w+ \d+$", "regex": True}):
            assert [line["text"] for line in search_all(world, job, **params)] == expected
            assert [line["text"] for line in search_all(world, job, **params, limit=1)] == expected
            assert [line["text"] for line in search_all(world, job, **params, order="desc", limit=1)] == expected[::-1]
        assert {line["level"] for line in search(world, job, text="WARNING")["data"]} == {"warning"}
        assert search(world, job, level="error") == {
            "object": "list",
            "data": [],
            "attempt": 1,
            "has_more": False,
            "next_offset": len("\n".join([*lines, ""])),
        }
        assert len(search_all(world, job, text="of it", limit=1000)) == 20_001

    def test_offset_of_a_match_opens_the_log_there(self, world: World) -> None:
        job = world.submit()
        world.start(job).log("0", 0, b"one\ntwo\nthree\nfour\n")
        [line] = search(world, job, text="three")["data"]
        assert world.client.get(f"/v1/jobs/{job}/logs", params={"offset": line["offset"], "limit": 6}).text == "three\n"
        before = world.client.get(f"/v1/jobs/{job}/logs", params={"before": line["offset"], "tail": 1})
        assert (before.text, before.headers["x-trainyard-offset"]) == ("two\n", "4")

    def test_last_line_without_its_end_is_returned_again_when_it_is_longer(self, world: World) -> None:
        job = world.submit()
        worker = world.start(job)
        worker.log("0", 0, b"first\nERROR hal")
        page = search(world, job, level="error")
        assert ([line["text"] for line in page["data"]], page["next_offset"]) == (["ERROR hal"], 6)
        worker.log("0", 15, b"f\nERROR two\n")
        page = search(world, job, level="error", offset=page["next_offset"])
        assert [(line["offset"], line["text"]) for line in page["data"]] == [(6, "ERROR half"), (17, "ERROR two")]

    def test_positions_of_times_and_steps(self, world: World) -> None:
        job = world.submit()
        worker = world.start(job)
        worker.log("0", 0, b"starting\n")
        for step in (1, 2, 3):
            world.clock.advance(60)
            worker.metrics([("train/loss", step, 1.0)])
            worker.log("0", 9 + (step - 1) * 7, f"step {step}\n".encode())
        world.clock.advance(60)

        def position(**params: Any) -> Any:
            return world.client.get(f"/v1/jobs/{job}/logs/position", params=params)

        assert position(step=2).json()["offset"] == 16
        assert position(time=position(step=3).json()["time"]).json()["offset"] == 23
        assert position(time="2026-01-01T00:00:00Z").json()["offset"] == 0
        assert position(time=world.clock().isoformat()).json() == {
            "object": "log_position",
            "attempt": 1,
            "rank": "0",
            "offset": 30,
            "time": position(time=world.clock().isoformat()).json()["time"],
        }
        assert position(step=4).status_code == 404
        assert position(step=4).json()["error"]["code"] == "step_not_found"
        assert position().status_code == position(step=1, time="2026-01-01T00:00:00Z").status_code == 422


@pytest.mark.databases("sqlite")
class TestBounds:
    def test_a_million_lines_are_searched_within_seconds(self, world: World) -> None:
        job = world.submit()
        log = b"".join(b"2026-01-01 00:00:00 step %07d loss 0.123456 lr\n" % number for number in range(1_000_000))
        width = len(log) // 1_000_000
        middle = 500_000 * width
        write_log(world, world.start(job), log[:middle] + b"needle\n" + log[middle:])
        with at_most(8):
            assert [line["offset"] for line in search_all(world, job, text="needle")] == [middle]
            assert [line["offset"] for line in search_all(world, job, text="needle", order="desc")] == [middle]
            (last,) = search(world, job, text=r"step 09999\d\d", regex=True, order="desc", limit=1)["data"]
            assert last["offset"] == 999_999 * width + 7
        page = world.client.get(f"/v1/jobs/{job}/logs", params={"before": middle, "tail": 2000})
        assert (len(page.content), page.headers["x-trainyard-offset"]) == (2000 * width, str(middle - 2000 * width))

    def test_a_search_that_takes_too_long_goes_on_in_the_next_request(self, world: World) -> None:
        job = world.submit()
        write_log(world, world.start(job), (b"x" * 1023 + b"\n") * 200 + b"needle\n")
        ticks = iter(range(10_000))

        def part(offset: int | None, order: Any) -> Any:
            expected = LogSearch(compile_pattern("needle"), offset, order)
            clock = lambda: float(next(ticks))  # noqa: E731
            return search_log(world.database, job, "0", expected, attempt=None, now=world.clock(), clock=clock)

        first = part(None, "asc")
        assert (first.data, first.has_more, first.next_offset) == ([], True, 2 * MAX_BLOCK - 2 * MAX_BLOCK % 1024)
        offsets, pages = [first.next_offset], 0
        while (page := part(offsets[-1], "asc")).has_more:
            offsets.append(page.next_offset)
            pages += 1
        assert ([line.text for line in page.data], offsets) == (["needle"], sorted(set(offsets)))
        assert part(None, "desc").data[0].text == "needle"
        assert module.MAX_SECONDS <= 1

    @pytest.mark.parametrize(
        "params",
        [
            {},
            {"text": "(", "regex": True},
            {"text": "x" * 201},
            {"text": "x", "limit": 1001},
            {"text": "x", "level": "info"},
            {"text": "x", "offset": -1},
        ],
    )
    def test_bad_searches_are_refused(self, world: World, params: dict[str, Any]) -> None:
        job = world.submit()
        answer = world.client.get(f"/v1/jobs/{job}/logs/search", params=params)
        assert answer.status_code == 422
        assert answer.json()["error"]["param"] in (*params, "text")

    def test_logs_that_do_not_exist(self, world: World) -> None:
        job = world.submit()
        assert search(world, job, text="x") == {
            "object": "list",
            "data": [],
            "attempt": None,
            "has_more": False,
            "next_offset": 0,
        }
        world.start(job)
        assert world.client.get(f"/v1/jobs/{job}/logs/search?text=x&rank=9&attempt=1").status_code == 404
        assert world.client.get(f"/v1/jobs/{job}/logs/search?text=x&attempt=9").status_code == 404
        assert world.client.get(f"/v1/jobs/{job}/logs/position?step=0").status_code == 404
        assert world.client.get(f"/v1/jobs/{job}/logs?before=3").status_code == 422
