"""Traces of one rank, without a service."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainyard.contract.spec.sections import Profile
from worker.core.distributed import Ranks
from worker.engine.callbacks.profiler import Profiler, TraceRequest
from worker.reporting.reporter import NullReporter

ALONE = Ranks(rank=0, world=1, local_rank=0, device=torch.device("cpu"), bookkeeping=None, checkpoints=None)


class Listener(NullReporter):
    def __init__(self):
        self.output = []

    def event(self, type_, message, *, level="info", data=None):
        self.output.append((type_, data))


class PendingRequest:
    """A request that exists from the start."""

    def __init__(self, expected):
        self.expected = expected

    def latest(self):
        return self.expected

    def done(self, number):
        self.expected = None


def train(profiler, steps):
    """Run steps of a product each, followed by an exponential outside the step."""
    for step in range(1, steps + 1):
        profiler.on_step_start(step)
        torch.ones(4, 4) @ torch.ones(4, 4)
        profiler.on_step_end(SimpleNamespace(step=step))
        torch.exp(torch.ones(4))
    profiler.on_loop_end(steps)


@pytest.fixture
def listener():
    return Listener()


def test_trace_has_only_the_requested_steps(tmp_path: Path, listener):
    train(Profiler(Profile(start_step=2, steps=1), tmp_path, ALONE, listener), 2)
    ((type_, data),) = listener.output
    assert (type_, data["first_step"], data["steps"]) == ("profile_written", 2, 1)
    table = (tmp_path / "step-0000000002-rank-0.txt").read_text()
    assert "aten::mm" in table
    assert "aten::exp" not in table


def test_trace_ended_early_reports_its_steps(tmp_path: Path, listener):
    train(Profiler(Profile(start_step=2, steps=5), tmp_path, ALONE, listener), 3)
    ((type_, data),) = listener.output
    assert (type_, data["first_step"], data["steps"]) == ("profile_written", 2, 2)


def test_a_request_after_the_last_step_is_reported_as_dropped(tmp_path: Path, listener):
    requested = PendingRequest(TraceRequest(steps=1, ranks=(0,), request=7))
    train(Profiler(None, tmp_path, ALONE, listener, requested), 2)
    assert listener.output == [("profile_dropped", {"request": 7})]


def test_a_fulfilled_request_is_not_dropped(tmp_path: Path, listener):
    requested = PendingRequest(TraceRequest(steps=1, ranks=(0,), request=7))
    train(Profiler(None, tmp_path, ALONE, listener, requested, lambda: 7), 2)
    assert [type_ for type_, _ in listener.output] == ["profile_written"]
