"""The queue folder: entries, locking and invalid files."""

import stat
from datetime import timedelta
from pathlib import Path

import pytest

from service.scheduler.base import SchedulerUnavailableError
from service.scheduler.local import queue as local_queue
from service.scheduler.local.queue import Queue
from tests.unit.service.scheduler.local.test_policy import NOW, entry


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path)


class TestQueue:
    def test_entries_are_read_back_in_order(self, queue: Queue) -> None:
        written = [queue.save(entry(2)), queue.save(entry(10, 2, running=True, gpus=(1,), pid=7, create_time=1.25))]
        assert queue.entries() == written
        assert queue.next_sequence() == 11

    def test_files_are_readable_by_the_owner_only(self, queue: Queue) -> None:
        queue.save(entry(1))
        assert stat.S_IMODE(queue.file("ty-1").stat().st_mode) == 0o600

    def test_an_ended_entry_leaves_the_queue_but_can_be_read(self, queue: Queue) -> None:
        queue.end(queue.save(entry(1)), NOW, "over")
        assert queue.entries() == []
        ended = queue.get("ty-1")
        assert ended is not None
        assert (ended.ended_at, ended.message) == (NOW, "over")

    def test_ended_entries_are_pruned_by_age_and_number(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local_queue, "MAX_ENDED", 2)
        for sequence in range(4):
            queue.end(entry(sequence), NOW + timedelta(seconds=sequence))
        assert [queue.get(f"ty-{n}") is not None for n in range(4)] == [False, False, True, True]
        queue.end(entry(4), NOW + timedelta(days=1, seconds=3.5))
        assert [queue.get(f"ty-{n}") is not None for n in range(5)] == [False, False, False, False, True]

    def test_an_invalid_file_makes_the_queue_unavailable(self, queue: Queue) -> None:
        queue.file("ty-1").write_text("{")
        with pytest.raises(SchedulerUnavailableError, match=r"ty-1\.json is not a valid entry of the local queue"):
            queue.entries()

    def test_the_lock_is_exclusive(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local_queue, "_LOCK_SECONDS", 0.05)
        with queue.locked(), pytest.raises(SchedulerUnavailableError, match="another process"), queue.locked():
            pass
        with queue.locked():
            pass
