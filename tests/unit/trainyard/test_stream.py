"""A stream over broken connections delivers each event once, in order, until the job ends."""

import asyncio

import httpx
import pytest

from tests.unit.trainyard.fake_service import error, job, metrics, sse, status, streamed
from trainyard.client import AuthenticationError, ConnectionFailedError, NotFoundError, ServerError
from trainyard.contract.wire.stream_events import MetricsUpdate, StatusUpdate

PATH = "/v1/jobs/a1/stream"
CUT = httpx.ReadError("cut")


def last_event_ids(service):
    return [r.headers.get("last-event-id") for r in service.requests if r.url.path == PATH]


class TestStream:
    def test_typed_events_until_the_final_status(self, service):
        service.on("GET", PATH, streamed(status(1, "running"), metrics(2, train__loss=0.5), status(3, "succeeded")))
        events = list(service.client().stream("a1"))
        assert [type(event.data) for event in events] == [StatusUpdate, MetricsUpdate, StatusUpdate]
        assert [event.id for event in events] == ["1", "2", "3"]
        assert len(service.requests) == 1

    def test_broken_connection_resumes_after_the_last_event(self, service):
        first = streamed(status(1, "running"), metrics(2, train__loss=0.5), CUT)
        service.on(
            "GET", PATH, first, httpx.ConnectError("refused"), error(503, "starting"), streamed(status(3, "failed"))
        )
        errors = []
        events = list(service.client().stream("a1", on_retry=lambda error, delay: errors.append(str(error))))
        assert [event.id for event in events] == ["1", "2", "3"]
        assert last_event_ids(service) == [None, "2", "2", "2"]
        assert len(errors) == len(service.slept) == 3

    def test_closed_stream_is_reconnected(self, service):
        service.on("GET", PATH, streamed(status(1, "running")), streamed(status(2, "succeeded")))
        assert [event.id for event in service.client().stream("a1")] == ["1", "2"]
        assert last_event_ids(service) == [None, "1"]

    def test_events_after_a_final_status_are_delivered(self, service):
        early = streamed(status(1, "succeeded"), metrics(2, train__loss=0.5))
        service.on("GET", PATH, early, httpx.Response(204))
        assert [event.id for event in service.client().stream("a1")] == ["1", "2"]
        assert last_event_ids(service) == [None, "2"]

    def test_no_content_ends_the_stream(self, service):
        service.on("GET", PATH, httpx.Response(204))
        assert list(service.client().stream("a1", last_event_id=9)) == []
        assert last_event_ids(service) == ["9"]

    def test_read_timeout_does_not_end_the_stream(self, service):
        service.on("GET", PATH, streamed(b": heartbeat\n\n"), streamed(status(1, "cancelled")))
        assert [event.id for event in service.client().stream("a1")] == ["1"]
        assert len(service.slept) == 1

    def test_logs_can_be_left_out_and_unknown_kinds_are(self, service):
        service.on("GET", PATH, streamed(sse(1, "weather", {"rain": 1}), status(2, "succeeded")))
        assert [event.id for event in service.client().stream("a1", logs=False)] == ["2"]
        assert service.requests[0].url.params["logs"] == "false"

    def test_unreachable_service_is_an_error_after_few_tries(self, service):
        service.on("GET", PATH, httpx.ConnectError("refused"))
        with pytest.raises(ConnectionFailedError):
            list(service.client().stream("a1"))
        assert len(service.requests) == 4

    def test_patience_ends(self, service):
        service.on("GET", PATH, streamed(status(1, "running"), CUT), httpx.ConnectError("refused"))
        with pytest.raises(ConnectionFailedError):
            list(service.client().stream("a1", patience=60))
        assert 45 <= sum(service.slept) <= 60

    @pytest.mark.parametrize(("code", "kind"), [(401, AuthenticationError), (404, NotFoundError), (500, ServerError)])
    def test_client_error_ends_the_stream(self, service, code, kind):
        service.on("GET", PATH, streamed(status(1, "running"), CUT), error(code, "no"))
        with pytest.raises(kind, match="no"):
            list(service.client().stream("a1"))

    def test_malformed_event_data_is_a_server_error(self, service):
        service.on("GET", PATH, streamed(sse(1, "status", {"state": "?"})))
        with pytest.raises(ServerError, match="of the same release"):
            list(service.client().stream("a1"))


class TestAsyncClient:
    def test_async_stream_behaves_the_same(self, service):
        service.on("GET", PATH, streamed(status(1, "running"), CUT), streamed(status(2, "succeeded")))
        service.on("GET", "/v1/jobs", {"data": [job("a1")], "last_id": "a1", "has_more": True}, {"data": [job("a2")]})
        service.on("GET", "/v1/jobs/a1", httpx.ReadError("cut"), job("a1"), job("a1", status="succeeded"))
        service.on("POST", "/v1/jobs", httpx.ReadError("cut"), job("a1"))
        service.on("POST", "/v1/jobs/a1/cancel", error(409, "job a1 is over", code="job_finished"))

        async def use():
            async with service.async_client() as client:
                assert [event.id async for event in client.stream("a1")] == ["1", "2"]
                assert [one.id async for one in client.jobs()] == ["a1", "a2"]
                assert (await client.submit({})).id == "a1"
                assert (await client.wait("a1")).status == "succeeded"
                with pytest.raises(Exception, match="job a1 is over"):
                    await client.cancel("a1")

        asyncio.run(use())
        keys = {
            r.headers["idempotency-key"] for r in service.requests if r.method == "POST" and "cancel" not in r.url.path
        }
        assert len(keys) == 1
