"""Ranks as forks of one process, with real processes in place of torchrun and of the ranks."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.wait import wait_until
from worker.core.processes import (
    FORK_SERVER,
    PARENT_VARIABLE,
    SOCKET_VARIABLE,
    children,
    forked_ranks,
    name_of,
    ranks_below,
    thread_states,
)
from worker.rank.fork_server import has_opened_gpu, represented_by, start

TORCHRUN = """
import selectors
import sys
from pathlib import Path
from worker.rank import fork_server


class Ordered(selectors.DefaultSelector):
    # Requests come before the ends of ranks that wait with them.
    def select(self, timeout=None):
        return sorted(super().select(timeout), key=lambda event: event[0].fd)


fork_server.selectors.DefaultSelector = Ordered
fork_server._cuda_is_initialized = lambda: False  # without torch


def run(program):
    exec(Path(program).read_text(), globals() | {"program": program})


print(fork_server.start(Path(sys.argv[1]), run), flush=True)
sys.stdin.read()
"""
REPRESENTATIVE = """
import sys
from worker.rank.fork_server import run_as_fork

run_as_fork(sys.argv[1])
print("itself")
"""
WAITS = "import signal; open(program + '.started', 'w'); signal.pause()"


class Node:
    """A stand-in for torchrun with the server of forks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-c", TORCHRUN, str(folder)]
        self.torchrun = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.torchrun.stdout is not None
        self.socket = self.torchrun.stdout.readline().strip()
        wait_until(lambda: [pid for pid in children(self.torchrun.pid) if name_of(pid) == FORK_SERVER])
        (self.server,) = children(self.torchrun.pid)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, rank: int, program: str) -> subprocess.Popen[str]:
        """Start the representative of a rank that runs the program."""
        path = self.folder / f"program-{len(self.started)}"
        path.write_text(program)
        own = {"RANK": str(rank), SOCKET_VARIABLE: self.socket, PARENT_VARIABLE: str(os.getpid())}
        command = [sys.executable, "-c", REPRESENTATIVE, str(path)]
        process = subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def start_waiting(self, rank: int, program: str = WAITS) -> tuple[subprocess.Popen[str], int]:
        """Start a rank that waits; return its representative and its process."""
        process = self.start(rank, program)
        mark = self.folder / f"program-{len(self.started) - 1}.started"
        wait_until(lambda: mark.exists() and represented_by(self.folder, process.pid) != process.pid)
        return process, forked_ranks(self.torchrun.pid)[rank]

    def close(self) -> None:
        self.torchrun.kill()
        for process in (self.torchrun, *self.started):
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    with contextlib.closing(made):
        yield made


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; the first process of a container need not wait for orphans."""
    return thread_states(pid).get(pid, "Z") in "ZX"


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import os; os._exit(0)", 0),
        ("import os; os._exit(7)", 7),
        ("raise ValueError", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
    ],
)
def test_representative_ends_as_its_rank(node: Node, program: str, status: int) -> None:
    assert node.start(0, program).wait(10) == status


def test_rank_has_the_variables_of_its_representative(node: Node) -> None:
    program = "import json, os; Path(program + '.json').write_text(json.dumps(dict(os.environ))); os._exit(0)"
    assert node.start(3, program).wait(10) == 0
    variables = json.loads((node.folder / "program-0.json").read_text())
    assert (variables["RANK"], variables[PARENT_VARIABLE]) == ("3", str(node.server))
    assert SOCKET_VARIABLE not in variables


def test_process_of_a_rank_is_known_by_its_number(node: Node) -> None:
    first, rank_0 = node.start_waiting(0)
    second, rank_11 = node.start_waiting(11)
    assert forked_ranks(node.torchrun.pid) == ranks_below(node.torchrun.pid) == {0: rank_0, 11: rank_11}
    assert represented_by(node.folder, second.pid) == rank_11
    assert represented_by(node.folder, rank_11) == rank_11, "it represents itself"
    assert first.pid != rank_0


def test_request_to_end_reaches_the_rank(node: Node) -> None:
    handles = f"import os, signal; signal.signal(15, lambda *_: os._exit(4)); {WAITS}"
    process, _ = node.start_waiting(0, handles)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 4


def test_rank_ends_with_its_representative(node: Node) -> None:
    process, rank = node.start_waiting(0)
    other, _ = node.start_waiting(1)
    process.kill()
    wait_until(lambda: is_gone(rank))
    assert other.poll() is None


def test_rank_that_starts_again_replaces_the_one_before(node: Node) -> None:
    """torchrun may start the next representative before the server has noticed the end of the one before."""
    first, before = node.start_waiting(0)
    _, after = node.start_waiting(0)
    assert first.wait(10) == -signal.SIGKILL
    assert is_gone(before)
    assert not is_gone(after)


def test_end_of_a_rank_does_not_reach_the_next_one_with_its_descriptors(node: Node) -> None:
    """The server learns of the next start and of the end at once, and reuses the numbers of closed descriptors."""
    first, before = node.start_waiting(0)
    program = node.folder / "next"
    program.write_text("import os, time; time.sleep(0.2); os._exit(3)")
    os.kill(node.server, signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as replies:
        connection.connect(node.socket)
        connection.sendall(json.dumps({"folder": str(program), "environ": {"RANK": "0"}}).encode() + b"\n")
        first.kill()
        os.kill(before, signal.SIGKILL)
        first.wait(10)
        os.kill(node.server, signal.SIGCONT)
        assert int(replies.readline()) != before
        assert os.waitstatus_to_exitcode(int(replies.readline())) == 3


def test_all_ranks_end_with_torchrun(node: Node) -> None:
    process, rank = node.start_waiting(0)
    node.torchrun.kill()
    wait_until(lambda: is_gone(node.server) and is_gone(rank))
    assert process.wait(10) == -signal.SIGKILL


def test_server_that_was_killed_ends_its_ranks_and_is_done_without(node: Node) -> None:
    process, rank = node.start_waiting(0)
    os.kill(node.server, signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    wait_until(lambda: is_gone(rank))
    output, _ = node.start(0, WAITS).communicate(timeout=10)
    assert output == "itself\n"


def test_signals_for_ranks_do_not_end_the_server(node: Node) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        os.kill(node.server, number)
    assert node.start(0, "import os; os._exit(3)").wait(10) == 3


@pytest.mark.parametrize("request_", [b"", b"{", b"{}\n", b"[]\n", b'{"folder": "x", "environ": {}}\n'])
def test_invalid_request_costs_only_its_connection(node: Node, request_: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(node.socket)
        connection.sendall(request_)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(10) == b""
    assert node.start(0, "import os; os._exit(3)").wait(10) == 3


def test_path_that_is_too_long_for_a_socket_leaves_no_server(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    assert start(folder, print) is None


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ((), False),
        (("/dev/null", "socket:[17]", "/home/ada/dev/nvidia0"), False),
        (("/dev/null", "/dev/nvidiactl"), True),
        (("/dev/kfd",), True),
    ],
)
def test_gpu_that_is_open_is_noticed(tmp_path: Path, targets: tuple[str, ...], expected: bool) -> None:
    for number, target in enumerate(targets):
        (tmp_path / str(number)).symlink_to(target)
    assert has_opened_gpu(tmp_path) is expected
