"""The pool of processes: results, errors, the deadline, and the shares of users."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from service.core.errors import InvalidRequestError, TooManyRequestsError
from service.core.process_pool import ProcessPool


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    made = ProcessPool(size=1, seconds=0.5)
    yield made
    made.close()


def test_function_runs_in_another_process_that_is_used_again(pool: ProcessPool) -> None:
    first = pool.run("ada", os.getpid)
    assert first != os.getpid()
    assert pool.run("bob", os.getpid) == first


def test_call_over_the_deadline_is_killed(pool: ProcessPool) -> None:
    process_id = pool.run("ada", os.getpid)
    started = time.monotonic()
    with pytest.raises(InvalidRequestError) as caught:
        pool.run("ada", time.sleep, 60)
    assert caught.value.code == "too_expensive"
    assert time.monotonic() - started < 10
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)
    assert pool.run("ada", os.getpid) != process_id, "the next call gets a new process"


def test_error_of_the_function_is_raised(pool: ProcessPool) -> None:
    with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
        pool.run("ada", int, "x")
    assert pool.run("ada", int, "7") == 7


def test_process_that_ends_is_replaced(pool: ProcessPool) -> None:
    with pytest.raises(InvalidRequestError):
        pool.run("ada", os._exit, 3)
    assert pool.run("ada", int, "7") == 7


def test_one_user_has_one_call_at_a_time() -> None:
    pool = ProcessPool(size=2, seconds=5, wait_seconds=0.05)
    pool.run("ada", os.getpid)
    entered = threading.Event()

    def wait() -> None:
        entered.set()
        pool.run("ada", time.sleep, 1)

    thread = threading.Thread(target=wait)
    thread.start()
    entered.wait(5)
    time.sleep(0.1)
    with pytest.raises(TooManyRequestsError, match="request of yours"):
        pool.run("ada", os.getpid)
    assert pool.run("bob", os.getpid), "the other process is for another user"
    thread.join(10)
    pool.close()


def test_call_that_no_process_takes_is_refused() -> None:
    pool = ProcessPool(size=1, seconds=5, wait_seconds=0.05)
    pool.run("ada", os.getpid)
    thread = threading.Thread(target=lambda: pool.run("ada", time.sleep, 1))
    thread.start()
    time.sleep(0.1)
    with pytest.raises(TooManyRequestsError, match="of other users"):
        pool.run("bob", os.getpid)
    thread.join(10)
    pool.close()


def test_calls_wait_for_a_process(pool: ProcessPool) -> None:
    pool.run("ada", os.getpid)
    thread = threading.Thread(target=lambda: pool.run("ada", time.sleep, 0.3))
    thread.start()
    time.sleep(0.1)
    assert pool.run("bob", os.getpid)
    thread.join(10)


def test_large_arguments_and_results_pass_through(pool: ProcessPool) -> None:
    text = "x" * 3_000_000
    assert pool.run("ada", str.upper, text) == text.upper()
