"""Writers get the lock in the order in which they arrived."""

import threading

import pytest

from service.db.fair_lock import FairLock, FairLockTimeoutError
from tests.support.wait import wait_until


def waiting(lock: FairLock) -> int:
    return len(lock._waiting)


def test_lock_is_granted_in_order() -> None:
    lock, served = FairLock(), []

    def serve(number: int) -> None:
        with lock.hold(10):
            served.append(number)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(5)]
    with lock.hold(10):
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_until(lambda number=number: waiting(lock) == number, 10, "it to wait")
    for thread in threads:
        thread.join()
    assert served == [0, 1, 2, 3, 4]


def test_lock_is_exclusive() -> None:
    lock, inside, inside_counts = FairLock(), [], []

    def serve() -> None:
        for _ in range(200):
            with lock.hold(10):
                inside.append(1)
                inside_counts.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=serve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(inside_counts), max(inside_counts)) == (1600, 1)


def test_timed_out_waiter_does_not_block_others() -> None:
    lock = FairLock()
    with lock.hold(1):
        with pytest.raises(FairLockTimeoutError), lock.hold(0.01):
            pass
        assert waiting(lock) == 0
    with lock.hold(0.01):
        pass


def test_error_releases_the_lock() -> None:
    lock = FairLock()
    with pytest.raises(ValueError, match="no"), lock.hold(1):
        raise ValueError("no")
    with lock.hold(0.01):
        pass
