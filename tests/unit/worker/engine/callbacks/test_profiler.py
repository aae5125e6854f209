"""Traces of one rank, without a service."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.ranks import single_rank
from trainyard.contract.spec.sections import Profile
from worker.engine.callbacks.profiler import Profiler, TraceRequest
from worker.reporting.reporter import NullReporter

SINGLE_RANK = single_rank()


class RecordingReporter(NullReporter):
    def __init__(self):
        self.events = []

    def event(self, type_, message, *, level="info", data=None):
        self.events.append((type_, data))


class PendingRequests:
    """Trace requests of which one exists from the start."""

    def __init__(self, request):
        self.request = request

    def latest(self):
        return self.request

    def done(self, number):
        self.request = None


def train(profiler, steps):
    """Run steps of a product each, followed by an exponential outside the step."""
    for step in range(1, steps + 1):
        profiler.on_step_start(step)
        torch.ones(4, 4) @ torch.ones(4, 4)
        profiler.on_step_end(SimpleNamespace(step=step))
        torch.exp(torch.ones(4))
    profiler.on_loop_end(steps)


@pytest.fixture
def reporter():
    return RecordingReporter()


def test_trace_has_only_the_requested_steps(tmp_path: Path, reporter):
    train(Profiler(Profile(start_step=2, steps=1), tmp_path, SINGLE_RANK, reporter), 2)
    ((type_, data),) = reporter.events
    assert (type_, data["first_step"], data["steps"]) == ("profile_written", 2, 1)
    table = (tmp_path / "step-0000000002-rank-0.txt").read_text()
    assert "aten::mm" in table
    assert "aten::exp" not in table


def test_trace_ended_early_reports_its_steps(tmp_path: Path, reporter):
    train(Profiler(Profile(start_step=2, steps=5), tmp_path, SINGLE_RANK, reporter), 3)
    ((type_, data),) = reporter.events
    assert (type_, data["first_step"], data["steps"]) == ("profile_written", 2, 2)


def test_a_request_after_the_last_step_is_reported_as_dropped(tmp_path: Path, reporter):
    requests = PendingRequests(TraceRequest(steps=1, ranks=(0,), request=7))
    train(Profiler(None, tmp_path, SINGLE_RANK, reporter, requests), 2)
    assert reporter.events == [("profile_dropped", {"request": 7})]


def test_a_fulfilled_request_is_not_dropped(tmp_path: Path, reporter):
    requests = PendingRequests(TraceRequest(steps=1, ranks=(0,), request=7))
    train(Profiler(None, tmp_path, SINGLE_RANK, reporter, requests, lambda: 7), 2)
    assert [type_ for type_, _ in reporter.events] == ["profile_written"]
