"""Heartbeats: retries, the late claim, and the end after a refusal."""

import errno
import threading
from collections.abc import Callable
from functools import partial

import httpx
import pytest

from tests.support.service_transport import service_transport
from tests.support.wait import wait_until
from trainyard.contract.wire.reports import Claim, HeartbeatReply
from worker.launcher.heartbeat import HeartbeatThread
from worker.reporting import service_client
from worker.reporting.service_client import ServiceClient

REPLY = {"stop": None, "profile": None}
CLAIM = Claim(nonce="nonce-0001", host="n0", pid=1)


class Service:
    """Answers heartbeats and claims with the given statuses, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.routes: list[str] = []
        self.replies: list[HeartbeatReply] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.routes.append(request.url.path.rpartition("/")[2])
        status = self.statuses.pop(0) if self.statuses else 200
        return httpx.Response(status, json=REPLY if status == 200 else {"error": {"code": "x"}})

    def heartbeats(
        self, *, late_claim: Claim | None = None, on_reply: Callable[[HeartbeatReply], None] | None = None
    ) -> HeartbeatThread:
        connect = partial(ServiceClient, "http://service", "a1", "token", transport=service_transport(self))
        return HeartbeatThread(0.01, connect, lambda: 1, on_reply or self.replies.append, late_claim=late_claim)


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_client, "_UNKNOWN_PAUSE_SECONDS", 0.02)


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_heartbeats_return_after_a_temporary_refusal(status: int) -> None:
    service = Service(*[status] * 5)
    thread = service.heartbeats()
    thread.start()
    wait_until(lambda: service.replies)
    thread.close()
    assert service.routes[:6] == ["heartbeat"] * 6


@pytest.mark.parametrize("status", [403, 409])
def test_heartbeats_end_when_the_attempt_has_ended(status: int) -> None:
    service = Service(status)
    service.heartbeats().start()
    wait_until(lambda: all(thread.name != "heartbeat" for thread in threading.enumerate()))
    assert service.routes == ["heartbeat"]


def test_late_claim_is_sent_until_the_service_knows_the_attempt() -> None:
    service = Service(401, 503)
    thread = service.heartbeats(late_claim=CLAIM)
    thread.start()
    wait_until(lambda: service.replies)
    thread.close()
    assert service.routes[:4] == ["claim", "claim", "claim", "heartbeat"]


def test_reply_that_cannot_be_carried_out_ends_no_later_heartbeat() -> None:
    service = Service()
    replies: list[HeartbeatReply] = []

    def on_reply(reply: HeartbeatReply) -> None:
        replies.append(reply)
        if len(replies) == 1:
            raise OSError(errno.ENOSPC, "the disk is full")

    thread = service.heartbeats(on_reply=on_reply)
    thread.start()
    wait_until(lambda: len(replies) > 1)
    thread.close()
