"""Shipping of logs: a log that the service cannot store holds up no other log."""

import httpx
import pytest

from tests.support.service_transport import service_transport
from tests.support.wait import wait_until
from worker.launcher.logs import LogShipper, LogStream
from worker.reporting.service_client import Backoff, ServiceClient


class Service:
    """Answers by the rank of a log."""

    def __init__(self, answers):
        self.answers = answers
        self.requests = []
        self.stored = {}

    def __call__(self, request):
        rank = request.url.params["rank"]
        self.requests.append(rank)
        answer = self.answers(rank, self.requests.count(rank))
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        self.stored[rank] = self.stored.get(rank, b"") + request.content
        return httpx.Response(200, json={"next_offset": len(self.stored[rank])})

    def client(self):
        return ServiceClient("http://service", "a1", "secret", transport=service_transport(self))


@pytest.fixture
def shipper(tmp_path):
    def make(answers):
        streams = [LogStream(str(rank), tmp_path / f"rank-{rank}.log") for rank in range(3)]
        for stream in streams:
            stream.path.write_bytes(b"line of %s\n" % stream.name.encode())
        service = Service(answers)
        backoff = Backoff(uniform=lambda low, high: 0.0)
        made = LogShipper(streams, service.client, interval=0.01, backoff=backoff)
        made.start()
        return service, made

    return make


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(500, json={"error": {}}),
        httpx.Response(422, json={"error": {}}),
        httpx.Response(409, json={"next_offset": 0}),
    ],
    ids=lambda answer: str(answer.status_code),
)
def test_log_that_cannot_be_stored_holds_up_no_other(shipper, tmp_path, answer):
    service, shipping = shipper(lambda rank, _: answer if rank == "1" else None)
    wait_until(lambda: {"0", "2"} <= set(service.stored), 10, "the other logs")
    with (tmp_path / "rank-2.log").open("ab") as file:
        file.write(b"more\n")
    wait_until(lambda: service.stored["2"] == b"line of 2\nmore\n", 10, "what is written later")
    shipping.close(5)
    assert "1" not in service.stored
    assert service.requests.count("1") <= 8, "it is not tried for ever"


@pytest.mark.parametrize("down", [503, httpx.ConnectError("refused")], ids=str)
def test_service_that_is_down_is_waited_for(shipper, down):
    answer = httpx.Response(down, json={}) if isinstance(down, int) else down
    service, shipping = shipper(lambda rank, count: answer if rank == "1" and count < 50 else None)
    wait_until(lambda: set(service.stored) == {"0", "1", "2"}, 10, "all logs")
    shipping.close(5)


def test_some_internal_errors_lose_nothing(shipper):
    failed = httpx.Response(500, json={"error": {}})
    service, shipping = shipper(lambda rank, count: failed if count < 5 else None)
    wait_until(lambda: set(service.stored) == {"0", "1", "2"}, 10, "all logs")
    shipping.close(5)


def test_refused_worker_sends_nothing_more(shipper):
    refused = httpx.Response(403, json={"error": {"code": "attempt_ended"}})
    service, shipping = shipper(lambda *_: refused)
    wait_until(lambda: service.requests, 10, "a request")
    shipping.close(5)
    assert service.requests == ["0"]
