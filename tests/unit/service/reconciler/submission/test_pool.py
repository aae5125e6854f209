"""The submission pool: an outcome stays available until it is recorded, and a failed start is reported."""

import threading

import pytest

from service.reconciler.submission.pool import NotSubmitted, SubmitPool
from service.scheduler.base import Accepted


def test_thread_start_failure_is_not_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    pool = SubmitPool(threads=1)
    pool.begin(1, "a", lambda: Accepted("7"))
    (answer,) = pool.collect()
    assert answer.outcome == NotSubmitted("can't start new thread")
    assert (pool.has_room(), pool.busy) == (True, False), "nothing is waited for"


def test_unrecorded_result_is_collected_again() -> None:
    pool = SubmitPool()
    for name in ("a", "b"):
        pool.begin(1, name, lambda: Accepted("7"))
    collected = pool.collect()
    assert next(collected).attempt_id == "a"
    collected.close()
    assert [answer.attempt_id for answer in pool.collect()] == ["a", "b"]
    assert list(pool.collect()) == []


def test_one_account_has_at_most_half_of_the_threads() -> None:
    pool, released = SubmitPool(threads=4), threading.Event()

    def slow() -> Accepted:
        released.wait(10)
        return Accepted("7")

    for name in ("a", "b"):
        assert pool.has_room(4711)
        pool.begin(1, name, slow, 4711)
    assert (pool.has_room(4711), pool.has_room(4712), pool.has_room()) == (False, True, True)
    released.set()
    pool.wait(10)
    assert len(list(pool.collect())) == 2
    assert pool.has_room(4711)
