import errno
import json
import os
import resource
import shutil
import threading
import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.support.forks import in_a_fork
from tests.support.service_transport import service_transport
from tests.support.wait import wait_until
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.media import MediaReport
from trainyard.contract.wire.reports import MAX_POINTS, CheckpointReport, MetricsBatch, Point
from trainyard.contract.wire.spool import format_record, parse_spool, read_acknowledged
from worker.reporting.batch_sender import batch_records
from worker.reporting.reporter import SpoolReporter
from worker.reporting.service_client import (
    Backoff,
    FailedError,
    ForeignAnswerError,
    RefusedError,
    RejectedError,
    ServiceClient,
    UnavailableError,
    UnknownAttemptError,
)
from worker.reporting.spool_sender import SpoolSender


class Service:
    """Responds from a list, then with 200."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.arrived = threading.Event()

    def __call__(self, request):
        answer = self.answers.pop(0) if self.answers else 200
        if answer == 200:
            self.requests.append((request.url.path.rpartition("/")[2], json.loads(request.content)))
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer, json={}, headers={"Retry-After": "0"})

    def points(self):
        return [point["step"] for route, body in self.requests if route == "metrics" for point in body["points"]]

    def client(self):
        return ServiceClient("http://service", "a1", "secret", transport=service_transport(self))


def reporter(layout, service, execution=1):
    sender = SpoolSender(layout, execution, service.client, backoff=Backoff(uniform=lambda low, high: 0.0))
    return SpoolReporter(layout, execution, 0, sender)


@pytest.fixture
def layout(tmp_path):
    return AttemptLayout(tmp_path)


class TestSpoolReporter:
    def test_spools_sends_and_acknowledges(self, layout):
        service = Service()
        spool_reporter = reporter(layout, service)
        for step in range(1, 30):
            spool_reporter.points(step, {"train/loss": 1.0 / step})
        spool_reporter.event("started", "here we go")
        spool_reporter.close(5)
        assert service.points() == list(range(1, 30))
        assert [body["events"][0]["sequence"] for route, body in service.requests if route == "events"] == [29]
        assert read_acknowledged(layout.spool_acknowledged(1)) == layout.spool_file(1).stat().st_size

    def test_the_spool_is_written_before_a_request_is_sent(self, layout):
        service = Service(*[httpx.ConnectError("down")] * 10_000)
        spool_reporter = reporter(layout, service)
        spool_reporter.points(1, {"train/loss": float("nan")})
        spool_reporter.flush_to_disk()
        assert [record.body().points[0].step for record in parse_spool(layout.spool_file(1))] == [1]
        began = time.monotonic()
        spool_reporter.close(0.3)
        assert time.monotonic() - began < 20
        assert read_acknowledged(layout.spool_acknowledged(1)) == 0

    def test_point_time_is_the_time_of_the_call(self, layout):
        spool_reporter = SpoolReporter(layout, 1, 0, None)
        before = datetime.now(UTC)
        spool_reporter.points(1, {"train/loss": 1.0})
        after = datetime.now(UTC)
        spool_reporter.close(0)
        (record,) = parse_spool(layout.spool_file(1))
        tick = timedelta(milliseconds=1)
        assert before - tick <= record.body().points[0].time <= after + tick

    def test_a_checkpoint_stays_in_order(self, layout):
        service = Service()
        spool_reporter = reporter(layout, service)
        report = CheckpointReport(
            execution=1, step=2, size_bytes=3, digest=f"sha256:{'0' * 64}", world_size=1, time=datetime.now(UTC)
        )
        spool_reporter.points(1, {"a": 1.0})
        spool_reporter.checkpoint(report)
        spool_reporter.points(2, {"a": 1.0})
        spool_reporter.close(5)
        assert [route for route, _ in service.requests] == ["metrics", "checkpoints", "metrics"]


class TestFullDisk:
    @pytest.mark.fault_scenario(24)
    def test_full_disk_loses_no_record(self, layout):
        assert in_a_fork(lambda: self.fill_and_free(layout)) == 0
        steps = [record.body().points[0].step for record in parse_spool(layout.spool_file(1))]
        assert steps == list(range(1, 60))

    def fill_and_free(self, layout):
        """Fill the spool up to a limit on the file's size, which fails a write in its middle as a full disk does."""
        spool_reporter = SpoolReporter(layout, 1, 0, None)
        for step in range(1, 20):
            spool_reporter.points(step, {"train/loss": 1.0})
        spool_reporter.flush_to_disk()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (layout.spool_file(1).stat().st_size + 50, hard))
        for step in range(20, 60):
            spool_reporter.points(step, {"train/loss": 1.0})
        with pytest.raises(OSError, match="the spool cannot be written"):
            spool_reporter.flush_to_disk()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        wait_until(lambda: layout.spool_file(1).read_text().count("\n") == 59, 10, "the rest to be written")
        spool_reporter.close(1)

    def test_records_dropped_from_a_full_queue_are_counted(self, layout, monkeypatch):
        monkeypatch.setattr("worker.reporting.reporter._MAX_QUEUED", 0)
        spool_reporter = SpoolReporter(layout, 1, 0, None)
        spool_reporter.points(1, {"train/loss": 1.0})
        spool_reporter.event("started", "here we go")
        spool_reporter.close(1)
        lost = [record.body().events[0] for record in parse_spool(layout.spool_file(1))][-1]
        assert (lost.type, lost.data) == ("points_lost", {"reports": 1})


class TestDeletedSpool:
    def test_deleted_spool_is_restored_with_all_records(self, layout):
        service = Service()
        spool_reporter = reporter(layout, service)
        for step in range(1, 6):
            spool_reporter.points(step, {"train/loss": 1.0})
        spool_reporter.flush_to_disk()
        wait_until(lambda: 5 in service.points(), 10, "the first points")
        shutil.rmtree(layout.spool)
        for step in range(6, 10):
            spool_reporter.points(step, {"train/loss": 1.0})
        spool_reporter.close(5)
        assert service.points() == list(range(1, 10))
        steps = [record.body().points[0].step for record in parse_spool(layout.spool_file(1))]
        assert steps == list(range(1, 10))

    def test_moved_run_directory_takes_the_records_along(self, tmp_path):
        layout = AttemptLayout(tmp_path / "run")
        spool_reporter = SpoolReporter(layout, 1, 0, None)
        spool_reporter.points(1, {"train/loss": 1.0})
        spool_reporter.flush_to_disk()
        moved = layout.root.rename(tmp_path / "moved")
        spool_reporter.points(2, {"train/loss": 1.0})
        spool_reporter.close(0)
        assert not layout.root.exists()
        steps = [record.body().points[0].step for record in parse_spool(AttemptLayout(moved).spool_file(1))]
        assert steps == [1, 2]


class TestSpoolSender:
    def fill(self, layout, execution, steps):
        spool_reporter = SpoolReporter(layout, execution, 0, None)
        for step in steps:
            spool_reporter.points(step, {"train/loss": 1.0})
        spool_reporter.close(0)

    def send(self, layout, service, execution, node=None):
        backoff = Backoff(uniform=lambda low, high: 0.0)
        sender = SpoolSender(layout, execution, service.client, node=node, backoff=backoff)
        sender.start()
        sender.close(5)

    def test_earlier_executions_are_sent_first_from_their_offset(self, layout):
        self.fill(layout, 1, [1, 2, 3])
        first = next(parse_spool(layout.spool_file(1)))
        layout.spool_acknowledged(1).write_text(str(first.end))
        self.fill(layout, 2, [3, 4])
        service = Service()
        self.send(layout, service, 2)
        assert service.points() == [2, 3, 3, 4]
        assert [body["execution"] for _, body in service.requests] == [1, 2]
        assert read_acknowledged(layout.spool_acknowledged(1)) == layout.spool_file(1).stat().st_size

    def test_node_sends_its_tracker_spools_of_all_executions(self, layout):
        for execution, node in ((1, 0), (1, 1), (2, 0)):
            self.fill(layout, execution, [execution * 10 + node])
            layout.spool_file(execution).rename(layout.tracker_spool(execution, node))
        self.fill(layout, 1, [5])
        service = Service()
        self.send(layout, service, 2, node=0)
        assert service.points() == [10, 20]

    def test_transient_failures_are_retried(self, layout):
        self.fill(layout, 1, [1])
        service = Service(503, 429, httpx.ReadTimeout("slow"), 408, 500)
        self.send(layout, service, 1)
        assert service.points() == [1]

    def test_only_the_rejected_record_is_skipped(self, layout):
        self.fill(layout, 1, [1, 2, 3])
        # The merged request, then its halves [1] and [2, 3], then [2] and [3]; the second record is invalid.
        service = Service(422, 200, 422, 422, 200)
        self.send(layout, service, 1)
        assert service.points() == [1, 3]
        assert read_acknowledged(layout.spool_acknowledged(1)) == layout.spool_file(1).stat().st_size

    @pytest.mark.parametrize("status", [401, 404])
    @pytest.mark.fault_scenario(33)
    def test_unknown_attempt_is_retried_without_loss(self, layout, status):
        self.fill(layout, 1, [1, 2])
        service = Service(status, status, 200)
        self.send(layout, service, 1)
        assert service.points() == [1, 2]

    @pytest.mark.parametrize("status", [403, 409])
    def test_rejection_ends_sending_without_acknowledgement(self, layout, status):
        self.fill(layout, 1, [1])
        service = Service(status)
        self.send(layout, service, 1)
        assert service.points() == []
        assert read_acknowledged(layout.spool_acknowledged(1)) == 0

    def test_damaged_record_ends_only_its_own_file(self, layout):
        self.fill(layout, 1, [1, 2, 3])
        path = layout.spool_file(1)
        path.write_bytes(path.read_bytes().replace(b'"step":2', b'"step":7'))
        self.fill(layout, 2, [4])
        service = Service()
        self.send(layout, service, 2)
        assert service.points() == [1, 4]

    def test_sending_goes_on_without_acknowledgements_on_disk(self, layout, monkeypatch):
        def fail(*_args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        service = Service()
        sender = SpoolSender(layout, 1, service.client, acknowledge_seconds=0.0)
        spool_reporter = SpoolReporter(layout, 1, 0, sender)
        with monkeypatch.context() as full:
            full.setattr("worker.reporting.spool_sender.write_atomic", fail)
            spool_reporter.points(1, {"train/loss": 1.0})
            wait_until(lambda: service.points() == [1], 10, "the first point")
            spool_reporter.points(2, {"train/loss": 1.0})
            wait_until(lambda: service.points() == [1, 2], 10, "the second point")
        spool_reporter.close(5)
        assert read_acknowledged(layout.spool_acknowledged(1)) == layout.spool_file(1).stat().st_size


class TestReportBatches:
    def test_request_size_is_within_the_service_limit(self, layout):
        spool_reporter = SpoolReporter(layout, 1, 0, None)
        for step in range(1, 50):
            spool_reporter.points(step, {f"key/{index}": 0.0 for index in range(90)})
        spool_reporter.close(0)
        made = batch_records(list(parse_spool(layout.spool_file(1))), 0)
        counts = [len(json.loads(batch.body())["points"]) for batch in made]
        assert max(counts) <= MAX_POINTS
        assert sum(counts) == 49 * 90
        assert len(counts) == 5

    def test_requests_name_their_records_and_curves_begin_again_alone(self):
        at = datetime(2026, 1, 1, tzinfo=UTC)

        def line(seq, points, restarts=()):
            sent = tuple(Point(key="key", step=step, value=1.0, time=at) for step in range(points))
            batch = MetricsBatch(execution=1, resumed_from_step=0, points=sent, restarts=restarts)
            return format_record(seq, "metrics", batch)

        spool = b"".join([line(3, 2), line(4, 0), line(6, 1), line(7, 3, ("key",)), line(8, 0), line(9, 1)])
        made = batch_records(list(parse_spool(spool)), 2)
        sent = [MetricsBatch.model_validate_json(batch.body()) for batch in made]
        assert [(batch.source.records, batch.restarts) for batch in sent] == [
            (((3, 2), (6, 1)), ()),
            (((7, 3),), ("key",)),
            (((9, 1),), ()),
        ]
        assert {batch.source.spool for batch in sent} == {2}

    def test_a_report_of_media_names_its_record(self):
        items = [{"key": 'the "key": a', "step": 1, "type": "image", "caption": '"key":', "path": "1.png"}] * 2
        at = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
        report = MediaReport.model_validate({"execution": 1, "items": [{**one, "time": at} for one in items]})
        (batch,) = batch_records(list(parse_spool(format_record(7, "media", report))), 2)
        sent = MediaReport.model_validate_json(batch.body())
        assert (sent.items, sent.source.spool, sent.source.records) == (report.items, 2, ((7, 2),))


class TestServiceClient:
    def client(self, *answers, **options):
        transport = service_transport(Service(*answers))
        return ServiceClient("http://service", "a1", "secret", transport=transport, **options)

    def test_requests_carry_the_attempt_token(self):
        observed = []

        def answer(request):
            observed.append((str(request.url), request.headers["Authorization"], request.headers["Content-Type"]))
            return httpx.Response(200, json={"next_offset": 3})

        client = ServiceClient("http://service/", "a1", "secret", transport=service_transport(answer))
        assert client.post("logs", b"abc", params={"rank": "launch", "offset": 0}) == {"next_offset": 3}
        url = "http://service/v1/attempts/a1/logs?rank=launch&offset=0"
        assert observed == [(url, "Bearer secret", "application/octet-stream")]

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (500, FailedError),
            (503, UnavailableError),
            (429, UnavailableError),
            (408, UnavailableError),
            (httpx.ConnectError("no"), UnavailableError),
            (422, RejectedError),
            (413, RejectedError),
            (401, UnknownAttemptError),
            (404, UnknownAttemptError),
            (403, RefusedError),
            (409, RefusedError),
        ],
    )
    def test_status_code_selects_the_outcome(self, answer, error):
        client = self.client(answer)
        with pytest.raises(error):
            client.post("claim", "{}")

    @pytest.mark.parametrize("statuses", [(200, 201, 204), (301, 302, 307), range(400, 500), range(500, 600)])
    def test_answer_of_a_proxy_is_neither_success_nor_refusal(self, statuses):
        for status in statuses:
            transport = service_transport(lambda request: httpx.Response(status, text="<html>"))  # noqa: B023
            client = ServiceClient("http://service", "a1", "secret", transport=transport)
            with pytest.raises(ForeignAnswerError, match=f"with {status}: "):
                client.post("claim", "{}")

    def test_errors_of_the_service_are_known_by_their_body_too(self):
        body = {"error": {"message": "no", "type": "conflict_error", "code": "claimed"}}
        transport = service_transport(lambda request: httpx.Response(409, json=body, headers={"Server": "proxy"}))
        with pytest.raises(RefusedError):
            ServiceClient("http://service", "a1", "secret", transport=transport).post("claim", "{}")

    @pytest.mark.parametrize("content", [b'{"execution": 1', b"[]"])
    def test_cut_answer_is_not_an_acknowledgement(self, content):
        transport = service_transport(lambda request: httpx.Response(200, content=content))
        with pytest.raises(UnavailableError):
            ServiceClient("http://service", "a1", "secret", transport=transport).post("claim", "{}")

    @pytest.mark.parametrize(
        "answer",
        [
            httpx.Response(502, content=b"abc", headers={"Content-Encoding": "zstd-or-so"}),
            httpx.Response(503, text="<html>", headers={"Retry-After": b"\xb2"}),
            httpx.Response(502, text="[" * 200_000),
            httpx.Response(200, text="x" * (17 * 1024 * 1024)),
        ],
        ids=["encoded", "retry-after", "nested", "large"],
    )
    def test_malformed_answer_of_a_proxy_is_an_outage(self, answer):
        client = ServiceClient("http://service", "a1", "secret", transport=service_transport(lambda request: answer))
        with pytest.raises(ForeignAnswerError):
            client.post("claim", "{}")

    def test_body_that_arrives_too_slowly_is_an_outage(self):
        clock = iter(range(0, 1000, 20))
        transport = service_transport(lambda request: httpx.Response(200, content=iter([b"{", b"}", b" ", b" "])))
        client = ServiceClient("http://service", "a1", "secret", transport=transport, now=lambda: next(clock))
        with pytest.raises(ForeignAnswerError):
            client.post("claim", "{}")

    def test_requests_are_retried_until_the_deadline(self):
        clock = [0.0]
        client = self.client(
            *[503] * 1000,
            now=lambda: clock[0],
            sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds),
            uniform=lambda low, high: high,
        )
        with pytest.raises(UnavailableError):
            client.post_until(10.0, "claim", "{}")
        assert 8.0 < clock[0] <= 10.0


class TestBackoff:
    def test_the_ceiling_doubles_and_a_success_resets_it(self):
        backoff = Backoff(first=1, ceiling=5, uniform=lambda low, high: high)
        assert [backoff.pause() for _ in range(4)] == [1, 2, 4, 5]
        backoff.reset()
        assert backoff.pause() == 1

    def test_retry_after_is_respected(self):
        assert Backoff(uniform=lambda low, high: low).pause(7.0) == 7.0


class TestCallCost:
    def test_report_only_enqueues(self, layout):
        """A thousand calls return at once although the service is unreachable and the spool's writer is blocked."""
        service = Service(*[httpx.ConnectError("down")] * 10_000)
        spool_reporter = reporter(layout, service)
        values = {f"train/value_{number}": 0.1 for number in range(10)}
        times = []
        for step in range(1000):
            began = time.perf_counter()
            spool_reporter.points(step, values)
            times.append(time.perf_counter() - began)
        spool_reporter.close(0.1)
        # The median: other work on the machine may hold up a call, but not half of them.
        assert sorted(times)[500] < 100e-6
