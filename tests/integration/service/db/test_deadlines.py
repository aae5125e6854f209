"""Queries end with the deadline of their request, and with its client, on both databases."""

import asyncio
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.concurrency import run_in_threadpool

from service.api.routes import jobs as job_routes
from service.core.errors import BodyTooLargeError, ClientGoneError, InvalidRequestError
from service.core.thread_slots import ThreadSlots, ended_with_client
from tests.support.world import World

SLOW = sa.text(
    "WITH RECURSIVE counted (x) AS (SELECT CAST(1 AS BIGINT) UNION ALL SELECT x + 1 FROM counted WHERE x < 30000000) "
    "SELECT count(*) FROM counted"
)
"""A query of several seconds."""


def run_slow_query(world: World) -> Any:
    with world.database.read() as session:
        return session.scalar(SLOW)


async def request(world: World, slots: ThreadSlots, gone_after: float, *, is_refused: bool = False) -> Any:
    """Run the slow query for a client that leaves, or whose body is refused."""

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(gone_after)
        if is_refused:
            raise BodyTooLargeError("the body is larger than 7 bytes")
        return {"type": "http.disconnect"}

    async with slots.slot("ada") as deadline, ended_with_client(receive, deadline):
        return await run_in_threadpool(run_slow_query, world)


@pytest.mark.parametrize("is_refused", [False, True])
def test_query_ends_when_nobody_waits_for_its_answer(world: World, is_refused: bool) -> None:
    with pytest.raises(ClientGoneError):
        asyncio.run(request(world, ThreadSlots(each=1, total=1), 0.2, is_refused=is_refused))
    with world.database.read() as session:
        assert session.scalar(sa.text("SELECT 1")) == 1


def test_query_ends_at_the_deadline_of_its_request(world: World) -> None:
    with pytest.raises(InvalidRequestError, match=r"takes more than 0\.2 s, and was ended; ask for less") as caught:
        asyncio.run(request(world, ThreadSlots(each=1, total=1, seconds=0.2), 60))
    assert (caught.value.status, caught.value.code) == (422, "too_expensive")


@pytest.mark.databases("sqlite")
def test_sqlite_ends_queries_that_no_event_loop_watches(world: World) -> None:
    with ThreadSlots(each=1, total=1, seconds=0.2).hold("ada"), pytest.raises(InvalidRequestError):
        run_slow_query(world)


def test_list_of_jobs_that_takes_too_long_states_what_to_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_routes, "list_table", lambda *_: run_slow_query(world))
    monkeypatch.setattr(world.app_state, "user_slots", ThreadSlots(each=1, total=1, seconds=0.2))
    answer = world.client.get("/v1/jobs", params={"where": "name ~ a"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "too_expensive")
    assert "fewer conditions with ~" in error["message"]


@pytest.mark.databases("sqlite")
def test_floods_of_slow_queries_delay_another_user_by_one_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    list_table = job_routes.list_table

    def slow_for_flood(database: Any, page: Any, table: Any, *more: Any) -> Any:
        return run_slow_query(world) if table.where else list_table(database, page, table, *more)

    monkeypatch.setattr(job_routes, "list_table", slow_for_flood)
    monkeypatch.setattr(world.app_state, "user_slots", ThreadSlots(each=1, total=2, seconds=0.1, wait_seconds=60))
    clients, bert = [world.new_user("user", name) for name in ("anna", "cara", "dora")], world.new_user("user", "bert")
    with ThreadPoolExecutor(12) as threads:
        flood = [threads.submit(one.get, "/v1/jobs", params={"where": "name ~ a"}) for one in clients for _ in range(4)]
        wait(flood, return_when=FIRST_COMPLETED)
        assert bert.get("/v1/jobs").status_code == 200
        ended = sum(answer.done() for answer in flood)
        assert ended < len(flood), "its turn comes before their last ones"
        assert {answer.result().status_code for answer in flood} == {422}
