"""Whether ranks have met: connections of real processes to a port."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from worker.core.processes import is_connected_to
from worker.launcher.rank_meeting import PATIENCE_SECONDS, RankMeeting

RANK = """
import os, socket, sys
if sys.argv[1] == "connect":
    connection = socket.create_connection((sys.argv[2], int(os.environ["MASTER_PORT"])))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["127.0.0.1", "::1"])
def store(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A server, as torch's store is one."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as made:
        yield request.param, made.getsockname()[1]


@contextmanager
def rank(mode: str, host: str, port: int) -> Iterator[int]:
    variables = {**os.environ, "TRAINYARD_RANK": "0", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", RANK, mode, host]
    with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.communicate("")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def meeting() -> tuple[RankMeeting, Clock, list[str]]:
    clock, stated = Clock(), list[str]()
    return RankMeeting(2, stated.append, now=clock), clock, stated


def pass_time(meeting: RankMeeting, clock: Clock, seconds: float) -> None:
    end = clock.now + seconds
    while clock.now < end:
        clock.now = min(end, clock.now + 10)
        meeting.poll()


def test_ranks_that_never_connect_are_stated_once(
    store: tuple[str, int], meeting: tuple[RankMeeting, Clock, list[str]]
) -> None:
    made, clock, stated = meeting
    with rank("alone", *store) as pid:
        assert not is_connected_to(pid, store[1])
        made.poll()
        pass_time(made, clock, PATIENCE_SECONDS)
        assert stated == []
        pass_time(made, clock, 100)
    made.close()
    assert len(stated) == 1
    assert "2 ranks have not met in 3 minutes" in stated[0]


def test_a_connection_is_a_meeting(store: tuple[str, int], meeting: tuple[RankMeeting, Clock, list[str]]) -> None:
    made, clock, stated = meeting
    with rank("connect", *store) as pid:
        assert is_connected_to(pid, store[1])
        made.poll()
    with rank("alone", *store):
        pass_time(made, clock, 2 * PATIENCE_SECONDS)
    made.close()
    assert stated == []


@pytest.mark.parametrize(("seconds", "expected"), [(20, []), (40, ["until their end"])])
def test_a_program_that_ends_without_a_meeting(
    meeting: tuple[RankMeeting, Clock, list[str]], seconds: float, expected: list[str]
) -> None:
    made, clock, stated = meeting
    with rank("alone", "127.0.0.1", 1):
        made.poll()
        pass_time(made, clock, seconds)
    made.close()
    assert [text for text in expected if text in "".join(stated)] == expected
    assert len(stated) == len(expected)


def test_nothing_is_stated_without_ranks(meeting: tuple[RankMeeting, Clock, list[str]]) -> None:
    made, clock, stated = meeting
    pass_time(made, clock, 2 * PATIENCE_SECONDS)
    made.close()
    assert stated == []
