"""The submit server: a process that has imported submitit and forks a submitter for each request.

A submitter of its own for each attempt keeps environments and time limits apart; the fork saves the start of an
interpreter. Each message on the channel has two descriptors: the connection of the request, and its log. The submitter
reads the request from the connection, writes the number of its session in a line, submits, and writes the result.
"""

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from service.scheduler.slurm.submit import planned_executor, submit

MESSAGE = b"\0"
_LEAD_SECONDS = 5.0
"""How long before the deadline of its request the submitter ends sbatch."""


def main(channel: socket.socket) -> None:
    """Serve until the service closes the channel; submitters that run then continue."""
    # The kernel reaps the submitters.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, len(MESSAGE), 2)
        if not message:
            return
        # Without a process to fork, the connection is closed without a result.
        with suppress(OSError):
            if os.fork() == 0:
                _run_submitter(channel, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _run_submitter(channel: socket.socket, connection: int, log: int) -> None:
    """Serve a request in a forked process, and end it."""
    status = 1
    try:
        channel.close()
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with socket.socket(fileno=connection) as stream:
            _answer(stream)
        status = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _answer(stream: socket.socket) -> None:
    with stream.makefile("rb") as lines:
        request: dict[str, Any] = json.loads(lines.read())
    # This process ends itself before the service would kill it.
    remaining = request["deadline"] - time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, max(remaining, 0.001))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    executor = planned_executor(request | {"limit_seconds": min(request["limit_seconds"], remaining - _LEAD_SECONDS)})
    # This fails if the service no longer waits: it may have concluded that nothing was submitted.
    stream.sendall(b"%d\n" % os.getpid())
    try:
        submit(request, executor)
    finally:
        stream.sendall(json.dumps(executor.result).encode())


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
