"""Numbers about the run itself."""

from types import SimpleNamespace

import pytest
import torch

from worker import metrics
from worker.metrics import Performance


@pytest.fixture
def performance():
    return Performance(SimpleNamespace(device=torch.device("cpu"), gather=lambda own: [own]), tokens_per_example=0)


def test_the_most_that_was_held_is_never_below_what_is_held(performance, monkeypatch):
    told = []
    for held, most in ((400, 380), (390, 380), (300, 500)):
        monkeypatch.setattr(metrics, "host_rss", lambda held=held: held)
        monkeypatch.setattr(metrics, "host_peak", lambda most=most: most)
        found = performance.take()
        told.append((found["memory/host_rss_bytes"], found["memory/host_peak_bytes"]))
    assert told == [(400, 400), (390, 400), (300, 500)]
