"""Calls that both clients share, the stream of all jobs, and metrics as a table."""

import asyncio
import inspect
import itertools

import httpx
import pytest

from tests.unit.trainyard.fake_service import TIME, FakeService, page, sse, streamed
from trainyard.client import AsyncClient, AsyncJobHandle, Client, JobHandle
from trainyard.contract.wire.curves import MetricsResource
from trainyard.contract.wire.stream_events import JobMetricsUpdate, JobStatusUpdate, Reset

ID = "swp_01kdvdna00az9cxjnszk8v8abh"
SWEEP = {
    "id": ID,
    "name": "rates",
    "created_by": "anna",
    "created_at": TIME,
    "fields": ["seed"],
    "size": 0,
    "members": [],
}


def status_event(number, status, job="job_1"):
    data = {"job_id": job, "name": "x", "status": status, "status_message": ""}
    return sse(None, "status", data).replace(b"event", f"id: 1-{number}\nevent".encode(), 1)


@pytest.mark.parametrize("kind", [Client, AsyncClient, JobHandle, AsyncJobHandle])
def test_every_method_has_name_docstring_and_parameters(kind):
    public = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    assert [name for name, method in public.items() if not method.__doc__] == []
    assert [name for name, method in public.items() if callable(method) and method.__name__ != name] == []
    job = ["job_id"] if kind in (Client, AsyncClient) else []
    assert list(inspect.signature(public["retry"]).parameters) == ["self", *job, "start", "resources"]


def test_both_clients_have_the_same_calls():
    def calls(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert calls(Client) - {"close"} == calls(AsyncClient) - {"aclose"}


def test_a_single_line_is_a_call_of_either_client(service):
    service.on("GET", f"/v1/sweeps/{ID}", SWEEP).on("GET", "/v1/sweeps", page(SWEEP, more=True), page(SWEEP))
    with service.client() as client:
        assert client.sweep(ID).name == "rates"
        assert [one.id for one in client.sweeps()] == [
            ID,
            ID,
        ]

    other = FakeService().on("GET", f"/v1/sweeps/{ID}", SWEEP).on("GET", "/v1/sweeps", page(SWEEP))

    async def same():
        async with other.async_client() as client:
            assert inspect.isawaitable(waiting := client.sweep(ID))
            assert (await waiting).name == "rates"
            return [one.id async for one in client.sweeps()]

    assert asyncio.run(same()) == [ID]


def test_stream_all_continues_past_ended_jobs_and_broken_connections(service):
    broken = streamed(status_event(1, "succeeded"), status_event(2, "running", "job_2"), httpx.ReadError("cut"))
    update = {"job_id": "job_2", "name": "x", "values": {"train/loss": 0.5}}
    service.on("GET", "/v1/stream", broken, streamed(sse(7, "metrics", update)))
    with service.client() as client:
        events = []
        for event in client.stream_all():
            events.append(event.data)
            if len(events) == 3:
                break
    assert [type(one) for one in events] == [JobStatusUpdate, JobStatusUpdate, JobMetricsUpdate]
    assert service.requests[1].headers["last-event-id"] == "1-2"


def test_stream_all_yields_reset_for_an_expired_event_id(service):
    service.on("GET", "/v1/stream", streamed(sse(None, "reset", {}), status_event(9, "running")))
    with service.client() as client:
        events = list(itertools.islice(client.stream_all(last_event_id="1-2"), 2))
    assert [(one.type, type(one.data)) for one in events] == [("reset", Reset), ("status", JobStatusUpdate)]


def test_metric_columns_have_equal_length():
    series = [
        {"key": key, "steps": [1, 2], "values": [0.5, "NaN"], "times": [TIME, TIME]} for key in ("eval/loss", "lr")
    ]
    table = MetricsResource(job_id="job_1", series=series).table()
    assert {name: len(column) for name, column in table.items()} == {"key": 4, "step": 4, "value": 4, "time": 4}
    assert table["key"] == ["eval/loss", "eval/loss", "lr", "lr"]
