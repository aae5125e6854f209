"""A delivery that cannot be sent or recorded is put aside, and the receivers of others do not wait for it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa

from service.plugins.webhooks.dispatcher import WebhookDispatcher
from service.plugins.webhooks.part import part_of
from service.plugins.webhooks.repository import WebhookRepository
from service.plugins.webhooks.sender import Sender, SendResult
from tests.support.shared_parts import trusted_authorities
from tests.support.world import World

Answer = Callable[[str], Awaitable[SendResult]]


class FakeSender(Sender):
    """Sends nothing. Answers by the path of the URL, and records the paths in order."""

    def __init__(self, answer: Answer) -> None:
        super().__init__((), lambda _host, _port, _owner: [])
        object.__setattr__(self, "answer", answer)
        object.__setattr__(self, "paths", [])

    paths: list[str]
    answer: Answer

    async def send(self, url: str, headers: dict[str, str], body: str, owner: str) -> SendResult:
        path = url.rpartition("/")[2]
        self.paths.append(path)
        return await self.answer(path)


async def accept(_path: str) -> SendResult:
    return SendResult(200)


def add_webhook(world: World, user: str, path: str) -> str:
    """Add a webhook of a new user for all jobs, and return its id."""
    part_of(world.app_state).resolver = lambda _host, _port, _owner: ["93.184.216.34"]
    body = {"url": f"https://example.org/{path}", "statuses": ["queued"], "jobs": "all"}
    answer = world.new_user("user", user).post("/v1/webhooks", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def delivery_of(world: World, webhook: str) -> tuple[str, int, str | None]:
    (row,) = world.client.get(f"/v1/webhooks/{webhook}/deliveries").json()["data"]
    return row["state"], row["attempts"], row["error"]


def test_delivery_that_cannot_be_signed_is_put_off(world: World) -> None:
    bad, good = add_webhook(world, "anna", "bad"), add_webhook(world, "bert", "good")
    with world.database.write() as session:
        session.execute(sa.text("UPDATE webhooks SET secret = 'whsec_x' WHERE id = :id"), {"id": bad})
    world.submit()
    sender = FakeSender(accept)
    world.deliver_webhooks(sender)
    assert sender.paths == ["good"]
    assert delivery_of(world, good) == ("delivered", 1, None)
    state, attempts, error = delivery_of(world, bad)
    assert (state, attempts) == ("waiting", 1)
    assert error is not None
    assert "not sent" in error
    assert world.deliver_webhooks(sender) == 0, "not before its time"


@pytest.mark.databases("sqlite")
def test_unexpected_error_of_one_receiver_is_its_own_failure(world: World) -> None:
    async def answer(path: str) -> SendResult:
        if path == "bad":
            raise RuntimeError("a bug")
        await asyncio.sleep(0)
        return SendResult(200)

    bad, good = add_webhook(world, "anna", "bad"), add_webhook(world, "bert", "good")
    world.submit()
    world.deliver_webhooks(FakeSender(answer))
    assert delivery_of(world, good) == ("delivered", 1, None)
    assert delivery_of(world, bad)[:2] == ("waiting", 1)


def test_error_text_of_a_receiver_is_storable(world: World) -> None:
    async def answer(_path: str) -> SendResult:
        return SendResult(error="ProtocolError: a\0b\ud800" + "x" * 300)

    webhook = add_webhook(world, "anna", "odd")
    world.submit()
    assert world.deliver_webhooks(FakeSender(answer)) == 1
    state, attempts, error = delivery_of(world, webhook)
    assert (state, attempts) == ("waiting", 1)
    assert error is not None
    assert len(error) == 256


@pytest.mark.databases("sqlite")
def test_result_that_cannot_be_recorded_is_not_sent_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = add_webhook(world, "anna", "bad"), add_webhook(world, "bert", "good")
    world.submit()
    original = WebhookRepository.get_delivery_for_update

    def fail_for_bad(repository: WebhookRepository, delivery_id: str) -> Any:
        pair = original(repository, delivery_id)
        if pair is not None and pair[1].id == bad:
            raise ValueError("a value that cannot be stored")
        return pair

    monkeypatch.setattr(WebhookRepository, "get_delivery_for_update", fail_for_bad)
    sender = FakeSender(accept)
    world.reconciler.lease.acquire(world.clock())
    dispatcher = WebhookDispatcher(world.database, world.reconciler.lease, world.clock, sender)
    assert [dispatcher.run_once() for _ in range(3)] == [2, 0, 0]
    assert sorted(sender.paths) == ["bad", "good"]
    assert delivery_of(world, good) == ("delivered", 1, None)


def test_names_of_one_user_that_hang_leave_threads_to_others() -> None:
    released = threading.Event()

    def resolve(host: str, _port: int, _owner: str) -> list[str]:
        if host == "slow.example":
            released.wait(30)
        return ["127.0.0.1"]

    sender = Sender((), resolve, trusted_authorities())

    async def send_all() -> SendResult:
        flood = [asyncio.create_task(sender.send("https://slow.example/", {}, "", "anna")) for _ in range(40)]
        await asyncio.sleep(0.1)
        result = await sender.send("https://fast.example/", {}, "", "bert")
        released.set()
        await asyncio.gather(*flood)
        return result

    assert "not sent: the URL" in str(asyncio.run(send_all()).error), "its name was resolved, to a private address"


@pytest.mark.databases("sqlite")
def test_later_delivery_does_not_wait_for_a_slow_receiver(world: World) -> None:
    arrived: list[asyncio.Event] = []

    async def answer(path: str) -> SendResult:
        if path == "fast":
            arrived[0].set()
            return SendResult(200)
        arrived.append(asyncio.Event())
        add_webhook(world, "bert", "fast")
        await asyncio.to_thread(world.submit)
        await asyncio.wait_for(arrived[0].wait(), 20)
        return SendResult(200)

    slow = add_webhook(world, "anna", "slow")
    world.submit()
    with world.database.write() as session:
        session.execute(sa.text("UPDATE webhooks SET jobs = 'own' WHERE id = :id"), {"id": slow})
    sender = FakeSender(answer)
    world.deliver_webhooks(sender)
    assert sender.paths == ["slow", "fast"]
    assert delivery_of(world, slow) == ("delivered", 1, None)


@pytest.mark.databases("sqlite")
def test_at_most_four_receivers_of_a_user_are_served_at_once(world: World) -> None:
    open_requests, most = 0, 0

    async def answer(_path: str) -> SendResult:
        nonlocal open_requests, most
        open_requests += 1
        most = max(most, open_requests)
        await asyncio.sleep(0.01)
        open_requests -= 1
        return SendResult(200)

    for number in range(6):
        add_webhook(world, f"anna{number}", f"hook{number}")
    with world.database.write() as session:
        session.execute(sa.text("UPDATE webhooks SET created_by = 'anna'"))
    world.submit()
    assert world.deliver_webhooks(FakeSender(answer)) == 6
    assert most == 4
