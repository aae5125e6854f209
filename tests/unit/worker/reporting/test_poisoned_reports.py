"""Reports that the service cannot store: they are put aside, and never stop or delay the reports after them."""

import json
from functools import partial

import httpx
import pytest
from pydantic import BaseModel

from tests.support.service_transport import service_transport
from tests.support.wait import wait_until
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.spool import (
    PUT_ASIDE_SUFFIX,
    format_record,
    parse_spool,
    read_acknowledged,
    read_put_aside,
)
from worker.reporting.reporter import SpoolReporter
from worker.reporting.service_client import Backoff, ServiceClient
from worker.reporting.spool_sender import SpoolSender

HTML = httpx.Response(500, text="<html>proxy error</html>")
HTML_403 = httpx.Response(403, text="<html>blocked by a rule</html>", headers={"Retry-After": "0"})


class Service:
    """Answers by the steps and event types in a request: `refuse` returns a status, an error or None."""

    def __init__(self, refuse):
        self.refuse = refuse
        self.requests = 0
        self.steps = []
        self.events = []

    def __call__(self, request):
        self.requests += 1
        body = json.loads(request.content)
        steps = [point["step"] for point in body.get("points", ())]
        events = [event["type"] for event in body.get("events", ())]
        answer = self.refuse(steps, events)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        if answer is None:
            self.steps += steps
            self.events += body.get("events", ())
        return httpx.Response(answer or 200, json={}, headers={"Retry-After": "0"})

    def client(self, *, reached=True):
        transport = service_transport(self, reached=reached)
        return ServiceClient("http://service", "a1", "secret", transport=transport)


@pytest.fixture
def layout(tmp_path):
    return AttemptLayout(tmp_path)


def fill(layout, execution, steps):
    spooling = SpoolReporter(layout, execution, 0, None)
    for step in steps:
        spooling.points(step, {"train/loss": 1.0})
    spooling.close(0)


def sender(layout, service, execution=1, *, reached=True):
    connect = partial(service.client, reached=reached)
    return SpoolSender(layout, execution, connect, backoff=Backoff(uniform=lambda low, high: 0.0))


def send(layout, service, until=lambda: True, *, reached=True):
    """Send the spool of execution 1; end the run when `until` is true."""
    sending = sender(layout, service, reached=reached)
    sending.start()
    wait_until(until, 20, "the reports")
    sending.close(20)


def put_aside(layout):
    return read_put_aside(layout.spool_file(1).with_suffix(PUT_ASIDE_SUFFIX))


def acknowledged_all(layout):
    return read_acknowledged(layout.spool_acknowledged(1)) == layout.spool_file(1).stat().st_size


@pytest.mark.parametrize("status", [500, 422, 413])
def test_only_the_poisoned_record_is_put_aside(layout, status):
    fill(layout, 1, range(100))
    service = Service(lambda steps, _: status if 41 in steps else None)
    send(layout, service, lambda: len(service.steps) == 99)
    assert sorted(service.steps) == [step for step in range(100) if step != 41]
    assert acknowledged_all(layout)
    assert service.requests < 40, "the batch is divided, not sent record by record"


def test_poisoned_record_does_not_stop_later_reports_of_a_run(layout):
    service = Service(lambda steps, _: 500 if 3 in steps else None)
    reporting = SpoolReporter(layout, 1, 0, sender(layout, service))
    for step in range(6):
        reporting.points(step, {"train/loss": 1.0})
    wait_until(lambda: service.events, 20, "the event about the record that was put aside")
    reporting.points(6, {"train/loss": 1.0})
    reporting.close(5)
    assert sorted(service.steps) == [0, 1, 2, 4, 5, 6]
    (event,) = service.events
    assert (event["type"], event["level"], event["data"]) == ("reports_rejected", "warning", {"count": 1})
    assert "500" in event["message"]


@pytest.mark.parametrize(
    "status", [200, 204, 302, 400, 401, 403, 404, 409, 413, 418, 422, 429, 499, 500, 501, 520, 599]
)
def test_proxy_that_answers_everything_is_an_outage(layout, status):
    """Its answers acknowledge nothing and refuse nothing."""
    fill(layout, 1, range(10))
    page = httpx.Response(status, text="<html>", headers={"Retry-After": "0"})
    service = Service(lambda *_: page if service.requests < 20 else None)
    send(layout, service, lambda: service.requests >= 20, reached=False)
    assert service.steps == list(range(10))
    assert acknowledged_all(layout)
    assert not put_aside(layout)


def test_record_that_a_proxy_refuses_alone_holds_up_no_other_and_is_listed(layout):
    fill(layout, 1, range(100))
    service = Service(lambda steps, _: HTML_403 if 41 in steps else None)
    send(layout, service, lambda: len(service.steps) == 99)
    assert acknowledged_all(layout)
    (start,) = put_aside(layout)
    assert next(parse_spool(layout.spool_file(1), start)).body().points[0].step == 41


def test_record_that_a_proxy_refused_is_sent_again_at_the_end(layout):
    fill(layout, 1, range(100))
    service = Service(lambda steps, _: HTML_403 if 41 in steps and len(service.steps) < 99 else None)
    send(layout, service, lambda: len(service.steps) == 99)
    assert sorted(service.steps) == list(range(100))
    assert not put_aside(layout)


def test_requests_become_smaller_where_a_proxy_limits_their_size(layout):
    fill(layout, 1, range(100))
    too_large = httpx.Response(413, text="<html>", headers={"Retry-After": "0"})
    service = Service(lambda steps, _: too_large if len(steps) > 10 else None)
    send(layout, service)
    assert sorted(service.steps) == list(range(100))
    assert service.requests < 40
    assert not put_aside(layout)


def test_what_the_list_has_no_room_for_is_not_acknowledged(layout, monkeypatch):
    monkeypatch.setattr("worker.reporting.spool_sender.MAX_PUT_ASIDE", 3)
    fill(layout, 1, range(10))
    service = Service(lambda steps, _: 422 if set(steps) & {1, 2, 4, 6, 8} else None)
    send(layout, service, lambda: len(service.steps) == 5)
    records = {record.body().points[0].step: record for record in parse_spool(layout.spool_file(1))}
    assert put_aside(layout) == [records[step].start for step in (1, 2, 4)]
    assert read_acknowledged(layout.spool_acknowledged(1)) == records[6].start


@pytest.mark.parametrize("down", [502, 503, 504, 429, 408, httpx.ConnectError("refused"), httpx.ReadTimeout("x"), HTML])
def test_service_that_is_down_is_waited_for_without_bound(layout, down):
    fill(layout, 1, range(10))
    service = Service(lambda *_: down if service.requests < 100 else None)
    send(layout, service, reached=False)
    assert service.steps == list(range(10))
    assert service.requests == 100


def test_some_internal_errors_divide_nothing(layout):
    fill(layout, 1, range(10))
    service = Service(lambda *_: 500 if service.requests < 5 else None)
    send(layout, service)
    assert service.steps == list(range(10))
    assert service.requests == 5


def test_records_put_aside_for_internal_errors_are_sent_again_at_the_end(layout):
    fill(layout, 1, range(10))
    service = Service(lambda steps, _: 500 if service.requests < 40 else None)
    send(layout, service, lambda: service.requests >= 40)
    assert sorted(service.steps) == list(range(10))


def test_internal_errors_at_the_end_leave_the_records_to_the_service(layout):
    """The service reads what is not acknowledged itself when the attempt ends, record by record."""
    fill(layout, 1, range(10))
    service = Service(lambda *_: 500 if sending._closing.wait(20) else None)
    sending = sender(layout, service)
    sending.start()
    sending.close(20)
    assert read_acknowledged(layout.spool_acknowledged(1)) == 0
    assert service.requests <= 10


def test_record_that_cannot_be_merged_does_not_stop_the_others(layout):
    class Raw(BaseModel):
        text: str

        def model_dump_json(self, **_):
            return self.text

    fill(layout, 1, range(3))
    with layout.spool_file(1).open("ab") as file:
        file.write(format_record(3, "metrics", Raw(text="[]")))
        file.write(format_record(4, "metrics", Raw(text="{")))
    lines = layout.spool_file(1).read_bytes()
    fill(layout, 2, [7])
    layout.spool_file(1).write_bytes(lines + layout.spool_file(2).read_bytes())
    layout.spool_file(2).unlink()

    def handle(request):
        body = json.loads(request.content) if request.content.startswith(b'{"') else None
        return httpx.Response(422, json={}) if body is None else service(request)

    service = Service(lambda *_: None)
    sending = SpoolSender(
        layout, 1, lambda: ServiceClient("http://service", "a1", "secret", transport=service_transport(handle))
    )
    sending.start()
    sending.close(20)
    assert sorted(service.steps) == [0, 1, 2, 7]
    assert acknowledged_all(layout)


def test_rejected_reports_cause_few_events_even_if_those_are_rejected(layout):
    service = Service(lambda *_: 422)
    reporting = SpoolReporter(layout, 1, 0, sender(layout, service))
    for step in range(200):
        reporting.points(step, {"train/loss": 1.0})
    wait_until(lambda: service.requests >= 300, 20, "all reports to be sent")
    reporting.close(5)
    kinds = [record.kind for record in parse_spool(layout.spool_file(1))]
    assert 1 <= kinds.count("events") <= 10
