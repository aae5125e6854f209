"""Asking beside the tick: an answer is kept until it is recorded, and what cannot begin says so."""

import threading

import pytest

from service.reconciler.submission.pool import HandOvers, NotAsked
from service.scheduler.base import Accepted


def test_what_no_thread_can_be_had_for_was_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    hand_overs = HandOvers(threads=1)
    hand_overs.begin(1, "a", lambda: Accepted("7"))
    (answer,) = hand_overs.collect()
    assert answer.outcome == NotAsked("can't start new thread")
    assert (hand_overs.room, hand_overs.busy) == (True, False), "nothing is waited for"


def test_an_answer_that_could_not_be_recorded_is_there_the_next_time() -> None:
    hand_overs = HandOvers()
    for name in ("a", "b"):
        hand_overs.begin(1, name, lambda: Accepted("7"))
    collected = hand_overs.collect()
    assert next(collected).attempt_id == "a"
    collected.close()
    assert [answer.attempt_id for answer in hand_overs.collect()] == ["a", "b"]
    assert list(hand_overs.collect()) == []
