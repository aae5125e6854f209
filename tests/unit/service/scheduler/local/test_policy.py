"""Who starts, who waits, and the words for it; no process is started here."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.scheduler.local.policy import Line, free_gpus, startable, visible_gpus, waiting
from service.scheduler.local.queue import Entry

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def entry(sequence: int, ranks: int = 1, *, running: bool = False, **changes: Any) -> Entry:
    fields: dict[str, Any] = {
        "tag": f"ty-{sequence}",
        "marker": f"{sequence}",
        "folder": Path("/runs"),
        "python": "python",
        "target": "a:b",
        "ranks": ranks,
        "environment": {},
        "sequence": sequence,
        "submitted_at": NOW,
        "begun_at": NOW if running else None,
    }
    return Entry(**(fields | changes))


def tags(entries: list[Entry]) -> list[str]:
    return [one.tag for one in entries]


class TestStartable:
    def test_starts_all_that_fit_in_order(self) -> None:
        assert tags(startable([entry(3), entry(1), entry(2)], slots=2)) == ["ty-1", "ty-2"]

    def test_a_running_entry_holds_its_ranks(self) -> None:
        assert startable([entry(1, 2, running=True), entry(2)], slots=2) == []

    def test_a_small_one_never_overtakes_a_large_one(self) -> None:
        assert startable([entry(1, running=True), entry(2, 2), entry(3)], slots=2) == []

    def test_an_entry_that_can_never_fit_holds_nobody_up(self) -> None:
        assert tags(startable([entry(1, 8), entry(2)], slots=2)) == ["ty-2"]

    @given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=12), st.integers(1, 8))
    def test_never_more_than_the_slots_and_always_a_prefix(self, queue: list[tuple[int, bool]], slots: int) -> None:
        entries = [entry(place, ranks, running=running) for place, (ranks, running) in enumerate(queue)]
        taken = sum(one.ranks for one in entries if not one.waiting)
        chosen = startable(entries, slots)
        fitting = [one for one in entries if one.waiting and one.ranks <= slots]
        assert chosen == fitting[: len(chosen)]
        assert not chosen or taken + sum(one.ranks for one in chosen) <= slots


class TestWaiting:
    def test_names_what_runs_and_counts_the_queue(self) -> None:
        entries = [entry(1, 2, running=True), entry(2), entry(3, 2)]
        seen = waiting(entries[2], Line.of(entries, 2))
        assert seen.state == "pending"
        assert seen.message == "waiting for 2 of 2 local slots, 2 taken; behind ty-1 (running) and 1 more in the queue"
        assert seen.behind == ("ty-1",)

    @pytest.mark.parametrize(
        ("before", "words"),
        [
            ([entry(1, 2, running=True)], "2 taken; behind ty-1 (running)"),
            (
                [entry(1, running=True), entry(2, running=True)],
                "2 taken; behind ty-1 (running) and 1 more running",
            ),
            (
                [entry(1, running=True), entry(2, running=True), entry(3)],
                "2 taken; behind ty-1 (running) and 1 more running, 1 more in the queue",
            ),
        ],
    )
    def test_words(self, before: list[Entry], words: str) -> None:
        last = entry(9)
        assert waiting(last, Line.of([*before, last], 2)).message == f"waiting for 1 of 2 local slots, {words}"

    def test_behind_one_that_waits_and_may_never_run_here(self) -> None:
        entries = [entry(1, 8), entry(2)]
        seen = waiting(entries[1], Line.of(entries, 2))
        assert (seen.message, seen.behind) == (
            "waiting for 1 of 2 local slots, 0 taken; behind ty-1 (queued)",
            ("ty-1",),
        )

    def test_what_all_say_is_no_longer_than_they_are_many(self) -> None:
        """What each of ten thousand tags is behind would be fifty million tags."""
        entries = [entry(1, 2, running=True), *(entry(place) for place in range(2, 502))]
        line = Line.of(entries, 2)
        told = [waiting(one, line) for one in entries[1:]]
        assert sum(len(one.behind) for one in told) == 500
        assert told[-1].message.endswith("behind ty-1 (running) and 499 more in the queue")

    def test_says_when_it_can_never_run_here(self) -> None:
        seen = waiting(entry(1, 4), Line.of([entry(1, 4)], 2))
        expected = "needs 4 local slots, and the service has only 2 now: raise TRAINYARD_LOCAL_SLOTS or cancel"
        assert (seen.state, seen.message) == ("pending", expected)

    def test_says_why_the_last_start_failed(self) -> None:
        one = entry(1, message="could not be started: no such file")
        assert waiting(one, Line.of([one], 2)).message == "could not be started: no such file; trying again"


class TestGpus:
    def test_running_entries_hold_theirs(self) -> None:
        entries = [entry(1, running=True, gpus=(0, 2)), entry(2, gpus=(1,))]
        assert free_gpus(entries, (0, 1, 2, 3)) == [1, 3]

    @pytest.mark.parametrize(
        ("environ", "expected"),
        [({}, (0, 1, 10)), ({"CUDA_VISIBLE_DEVICES": "3,1"}, (3, 1)), ({"CUDA_VISIBLE_DEVICES": ""}, ())],
    )
    def test_the_services_own(self, environ: dict[str, str], expected: tuple[int, ...]) -> None:
        devices = ["nvidia10", "nvidia0", "nvidiactl", "nvidia1", "nvidia-uvm", "null"]
        assert visible_gpus(environ, devices) == expected
