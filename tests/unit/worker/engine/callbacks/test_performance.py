"""Metrics about memory and time."""

from types import SimpleNamespace

import pytest
import torch

from worker.data.examples import BatchTokens
from worker.engine.callbacks import performance as metrics
from worker.engine.callbacks.performance import PerformanceMonitor, StepTimeAverage
from worker.engine.flops import ModelFlops
from worker.engine.step_clock import StepMarks


@pytest.fixture
def performance():
    return PerformanceMonitor(torch.device("cpu"))


def test_the_memory_peak_is_never_below_the_current_value(performance, monkeypatch):
    reported = []
    for held, most in ((400, 380), (390, 380), (300, 500)):
        monkeypatch.setattr(metrics, "host_rss", lambda held=held: held)
        monkeypatch.setattr(metrics, "host_peak", lambda most=most: most)
        result = collected(performance)
        reported.append((result["memory/host_rss_bytes"], result["memory/host_peak_bytes"]))
    assert reported == [(400, 400), (390, 400), (300, 500)]


@pytest.mark.parametrize(("world", "reported"), [(1, []), (3, [0, 1, 2]), (64, list(range(64))), (65, [])])
def test_per_rank_metrics_up_to_64_ranks(world, reported):
    monitor = PerformanceMonitor(torch.device("cpu"))
    _, *others = monitor.measure()
    result = monitor.metrics([[float(rank), *others] for rank in range(world)])
    assert {key: value for key, value in result.items() if key.startswith("perf/rank_seconds/")} == {
        f"perf/rank_seconds/{rank}": float(rank) for rank in reported
    }
    assert result["perf/rank_spread_seconds"] == world - 1


def collected(monitor):
    """Return the metrics of the interval that ends, of one rank."""
    return monitor.metrics([monitor.measure()])


class AsynchronousDevice:
    """A clock of a device that computes behind the host, in simulated seconds."""

    def __init__(self, monkeypatch):
        self.now = self.device = 0.0
        monkeypatch.setattr(metrics.time, "perf_counter", lambda: self.now)

    def launch(self, seconds):
        """Launch a kernel, which takes the host a millisecond."""
        self.now += 0.001
        self.device = max(self.device, self.now) + seconds

    def mark(self):
        return max(self.device, self.now)

    def seconds(self, start, end):
        return end - start

    def synchronize(self):
        self.now = max(self.now, self.device)


@pytest.fixture
def device(monkeypatch):
    return AsynchronousDevice(monkeypatch)


@pytest.fixture
def monitor(device):
    return PerformanceMonitor(torch.device("cpu"), ModelFlops(per_example=1e9), peak=1e12, clock=device)


def make_steps(monitor, device, count, wait=0.0):
    """Make steps whose forward takes 0.03, backward 0.06 and update 0.01 seconds on the device. The host waits for the
    copy of a checkpoint's state until `wait` seconds after it launched the first backward."""
    for step in range(1, count + 1):
        monitor.on_step_start(step)
        marks = StepMarks(device.mark())
        marks.loaded = device.mark()
        device.launch(0.03)
        marks.forwards.append((marks.loaded, device.mark()))
        device.launch(0.06)
        marks.computed = device.mark()
        device.now += wait if step == 1 else 0.0
        marks.staged = device.mark()
        device.launch(0.01)
        marks.updated = device.mark()
        monitor.on_step_end(SimpleNamespace(examples=10, tokens=BatchTokens(70, 490.0), marks=marks))


def test_times_are_those_of_the_device_and_not_of_the_launches(monitor, device):
    make_steps(monitor, device, 10)
    assert device.now < 0.1
    result = collected(monitor)
    assert result["perf/step_seconds"] == pytest.approx(0.1, rel=0.01)
    assert result["perf/examples_per_second"] == pytest.approx(100, rel=0.01)
    assert result["perf/tokens_per_second"] == pytest.approx(700, rel=0.01)
    assert result["perf/mfu"] == pytest.approx(0.1, rel=0.01)
    assert result["perf/forward_backward_seconds"] == pytest.approx(0.09, rel=0.02)
    assert result["perf/optimizer_seconds"] == pytest.approx(0.01, rel=0.02)


def test_evaluations_and_checkpoints_count_for_the_eta_alone(monitor, device):
    make_steps(monitor, device, 10)
    monitor.on_evaluation_start(10)
    device.launch(2.0)
    device.synchronize()
    monitor.on_evaluation(10, {})
    monitor.on_checkpoint_start(10)
    device.now += 3.0
    monitor.on_checkpoint_end(10)
    make_steps(monitor, device, 10)
    result = collected(monitor)
    assert result["perf/step_seconds"] == pytest.approx(0.1, rel=0.01)
    assert result["perf/evaluation_seconds"] == pytest.approx(2.0, rel=0.01)
    assert result["perf/checkpoint_stall_seconds"] == pytest.approx(3.0)
    assert monitor.step_time.seconds_per_step == pytest.approx(7.0 / 20, rel=0.01)
    make_steps(monitor, device, 10)
    assert collected(monitor)["perf/evaluation_seconds"] == 0.0


def test_waits_of_the_update_for_a_checkpoint_are_stalls(monitor, device):
    make_steps(monitor, device, 10)
    monitor.on_checkpoint_start(10)
    device.now += 1.0
    monitor.on_checkpoint_end(10)
    # More steps than those whose phases are averaged.
    make_steps(monitor, device, 200, wait=5.0)
    result = collected(monitor)
    # The device computes 0.09 seconds of the wait.
    assert result["perf/checkpoint_stall_seconds"] == pytest.approx(1.0 + 5.0 - 0.09, abs=0.01)
    assert result["perf/step_seconds"] == pytest.approx(0.1, rel=0.01)
    assert result["perf/optimizer_seconds"] == pytest.approx(0.01, rel=0.02)
    make_steps(monitor, device, 10)
    assert collected(monitor)["perf/checkpoint_stall_seconds"] == 0.0


def test_a_short_copy_of_a_checkpoint_stalls_nothing(monitor, device):
    monitor.on_checkpoint_start(0)
    monitor.on_checkpoint_end(0)
    make_steps(monitor, device, 10, wait=0.05)
    assert collected(monitor)["perf/checkpoint_stall_seconds"] == pytest.approx(0.0, abs=1e-9)


def test_phases_are_those_of_the_newest_steps(monitor, device):
    make_steps(monitor, device, 300)
    assert collected(monitor)["perf/forward_backward_seconds"] == pytest.approx(0.09, rel=0.02)
    assert collected(monitor)["perf/forward_backward_seconds"] == 0.0


def test_step_time_covers_the_last_minute():
    pace = StepTimeAverage()
    assert pace.seconds_per_step is None
    pace.add(5, 5.0)
    for _ in range(100):
        pace.add(5, 0.05)
    assert pace.seconds_per_step == pytest.approx(10 / 505, rel=0.1), "the warm-up counts as what it was: five steps"
    for seconds in (0.04, 0.16) * 600:
        pace.add(5, seconds)
    reported = pace.seconds_per_step
    pace.add(5, 0.2)
    assert reported == pytest.approx(0.02, rel=0.05)
    assert pace.seconds_per_step == pytest.approx(reported, rel=0.01), "one slow interval does not move it"
    pace.add(5, 600.0)
    assert pace.seconds_per_step == pytest.approx(120.0, rel=0.1), "ten minutes at a new pace are the pace"
