"""Jobs are downsampled in turns."""

import threading
from typing import Any

import pytest

from service.metrics.downsampling import downsampler
from service.metrics.downsampling.downsampler import Downsampler
from service.metrics.ingest.repository import InsertResult


def test_job_that_reports_without_pause_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    other, over, entered = threading.Event(), threading.Event(), threading.Event()

    def downsample(_database: Any, job_pk: int) -> int:
        entered.set()
        if job_pk == 2:
            other.set()
            return 0
        over.wait(0.01)
        return 0 if over.is_set() else 1

    monkeypatch.setattr(downsampler, "downsample_job", downsample)
    monkeypatch.setattr(downsampler, "_IDLE_SECONDS", 0.01)
    made = Downsampler(None, max_pending=1)  # type: ignore[arg-type]
    made.on_commit([InsertResult(1, 0, 1, "busy", 1)])
    assert entered.wait(10)
    made.on_commit([InsertResult(1, 0, 2, "other", 1)])
    try:
        assert other.wait(5)
    finally:
        over.set()
