"""The decisions of the local queue; no process is started here."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.scheduler.local.policy import QueueState, describe_waiting, free_gpus, startable, visible_gpus
from service.scheduler.local.queue import Entry

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def entry(sequence: int, ranks: int = 1, *, running: bool = False, **changes: Any) -> Entry:
    fields: dict[str, Any] = {
        "tag": f"ty-{sequence}",
        "env_tag": f"{sequence}",
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
    def test_an_owner_whose_starts_do_not_end_holds_up_nobody_else(self) -> None:
        begun = [entry(number, uid=1001, running=True) for number in range(3)]
        waiting = [entry(number, uid=1001) for number in (3, 4, 5)] + [entry(6, 2, uid=1002)]
        assert tags(startable([*begun, *waiting], slots=6)) == ["ty-3", "ty-6"]
        recorded = [each.model_copy(update={"pid": 7}) for each in begun]
        assert tags(startable([*recorded, *waiting], slots=6)) == ["ty-3", "ty-4", "ty-5"]

    def test_jobs_of_the_service_start_together(self) -> None:
        assert len(startable([entry(number) for number in range(9)], slots=9)) == 9

    def test_starts_all_that_fit_in_order(self) -> None:
        assert tags(startable([entry(3), entry(1), entry(2)], slots=2)) == ["ty-1", "ty-2"]

    def test_a_running_entry_uses_its_slots(self) -> None:
        assert startable([entry(1, 2, running=True), entry(2)], slots=2) == []

    def test_a_small_entry_never_overtakes_a_large_one(self) -> None:
        assert startable([entry(1, running=True), entry(2, 2), entry(3)], slots=2) == []

    def test_an_entry_that_can_never_fit_blocks_no_other(self) -> None:
        assert tags(startable([entry(1, 8), entry(2)], slots=2)) == ["ty-2"]

    @given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=12), st.integers(1, 8))
    def test_chosen_entries_fit_and_are_a_prefix_of_the_queue(self, queue: list[tuple[int, bool]], slots: int) -> None:
        entries = [entry(number, ranks, running=running) for number, (ranks, running) in enumerate(queue)]
        in_use = sum(one.ranks for one in entries if not one.waiting)
        chosen = startable(entries, slots)
        fitting = [one for one in entries if one.waiting and one.ranks <= slots]
        assert chosen == fitting[: len(chosen)]
        assert not chosen or in_use + sum(one.ranks for one in chosen) <= slots


class TestDescribeWaiting:
    def test_names_the_first_entry_ahead_and_counts_the_others(self) -> None:
        entries = [entry(1, 2, running=True), entry(2), entry(3, 2)]
        observation = describe_waiting(entries[2], QueueState.of(entries, 2))
        assert observation.state == "pending"
        message = "Waiting for 2 of 2 local slots (2 in use). Ahead: ty-1 (running), 1 more queued."
        assert observation.message == message
        assert observation.blocked_by == ("ty-1",)

    @pytest.mark.parametrize(
        ("before", "ahead"),
        [
            ([entry(1, 2, running=True)], "ty-1 (running)"),
            ([entry(1, running=True), entry(2, running=True)], "ty-1 (running), 1 more running"),
            (
                [entry(1, running=True), entry(2, running=True), entry(3)],
                "ty-1 (running), 1 more running, 1 more queued",
            ),
        ],
    )
    def test_messages(self, before: list[Entry], ahead: str) -> None:
        last = entry(9)
        message = describe_waiting(last, QueueState.of([*before, last], 2)).message
        assert message == f"Waiting for 1 of 2 local slots (2 in use). Ahead: {ahead}."

    def test_names_a_queued_entry_that_can_never_fit(self) -> None:
        entries = [entry(1, 8), entry(2)]
        observation = describe_waiting(entries[1], QueueState.of(entries, 2))
        message = "Waiting for 1 of 2 local slots (0 in use). Ahead: ty-1 (queued)."
        assert (observation.message, observation.blocked_by) == (message, ("ty-1",))

    def test_each_message_names_one_tag_however_long_the_queue(self) -> None:
        """All tags ahead of each of ten thousand entries would be fifty million tags."""
        entries = [entry(1, 2, running=True), *(entry(number) for number in range(2, 502))]
        queue = QueueState.of(entries, 2)
        observations = [describe_waiting(one, queue) for one in entries[1:]]
        assert sum(len(one.blocked_by) for one in observations) == 500
        assert observations[-1].message.endswith("Ahead: ty-1 (running), 499 more queued.")

    def test_an_entry_that_can_never_fit_reports_the_remedy(self) -> None:
        observation = describe_waiting(entry(1, 4), QueueState.of([entry(1, 4)], 2))
        expected = (
            "Cannot start: needs 4 local slots, and the service has 2. Raise TRAINYARD_LOCAL_SLOTS or cancel the job."
        )
        assert (observation.state, observation.message) == ("pending", expected)

    def test_a_failed_start_reports_its_error(self) -> None:
        one = entry(1, message="Start failed: no such file")
        message = describe_waiting(one, QueueState.of([one], 2)).message
        assert message == "Start failed: no such file. The service retries."


class TestGpus:
    def test_gpus_of_running_entries_are_not_free(self) -> None:
        entries = [entry(1, running=True, gpus=(0, 2)), entry(2, gpus=(1,))]
        assert free_gpus(entries, (0, 1, 2, 3)) == [1, 3]

    @pytest.mark.parametrize(
        ("environ", "expected"),
        [({}, (0, 1, 10)), ({"CUDA_VISIBLE_DEVICES": "3,1"}, (3, 1)), ({"CUDA_VISIBLE_DEVICES": ""}, ())],
    )
    def test_visible_gpus(self, environ: dict[str, str], expected: tuple[int, ...]) -> None:
        devices = ["nvidia10", "nvidia0", "nvidiactl", "nvidia1", "nvidia-uvm", "null"]
        assert visible_gpus(environ, devices) == expected

    @pytest.mark.parametrize(
        ("listed", "expected"),
        [
            ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",)),
            ("GPU-8932f937, GPU-1b2c", ("GPU-8932f937", "GPU-1b2c")),
            ("MIG-5c89852c-cc2c-5ad6-8f3f-1a2b3c4d5e6f", ("MIG-5c89852c-cc2c-5ad6-8f3f-1a2b3c4d5e6f",)),
            ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0", ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0",)),
            ("2,-1,3", (2,)),
            ("-1", ()),
            ("NoDevFiles", ()),
            ("0,GPU-8932f937", (0,)),
            ("GPU-8932f937,0", ("GPU-8932f937",)),
            ("1,1", ()),
        ],
    )
    def test_listed_gpus_are_those_that_cuda_uses(self, listed: str, expected: tuple[int | str, ...]) -> None:
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}, ["nvidia0"]) == expected
