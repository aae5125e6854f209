"""Metrics about memory and time."""

from types import SimpleNamespace

import pytest
import torch

from worker.engine.callbacks import performance as metrics
from worker.engine.callbacks.performance import PerformanceMonitor, StepTimeAverage


@pytest.fixture
def performance():
    return PerformanceMonitor(
        SimpleNamespace(device=torch.device("cpu"), gather=lambda own: [own]), tokens_per_example=0
    )


def test_the_memory_peak_is_never_below_the_current_value(performance, monkeypatch):
    reported = []
    for held, most in ((400, 380), (390, 380), (300, 500)):
        monkeypatch.setattr(metrics, "host_rss", lambda held=held: held)
        monkeypatch.setattr(metrics, "host_peak", lambda most=most: most)
        result = performance.collect()
        reported.append((result["memory/host_rss_bytes"], result["memory/host_peak_bytes"]))
    assert reported == [(400, 400), (390, 400), (300, 500)]


@pytest.mark.parametrize(("world", "reported"), [(1, []), (3, [0, 1, 2]), (64, list(range(64))), (65, [])])
def test_per_rank_metrics_up_to_64_ranks(world, reported):
    def gather(own):
        return [[float(rank), *own[1:]] for rank in range(world)]

    ranks = SimpleNamespace(device=torch.device("cpu"), gather=gather)
    result = PerformanceMonitor(ranks, tokens_per_example=0).collect()
    assert {key: value for key, value in result.items() if key.startswith("perf/rank_seconds/")} == {
        f"perf/rank_seconds/{rank}": float(rank) for rank in reported
    }
    assert result["perf/rank_spread_seconds"] == world - 1


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
