"""The helper: a short-lived process that acts with the rights of a job's owner.

It gets the owner's uid from sudo, or from a service that runs as root. It has no rights of the service, so a request
can harm only the owner. The request is one line of JSON on standard input: `operation`, `uid`, `deadline` on the
monotonic clock, and the operation's fields. The helper writes the line `begun` before it acts, and one line of JSON at
the end. It imports only the standard library, and for submissions submitit.
"""

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

MAX_REQUEST_BYTES = 64 * 1024 * 1024
BEGUN = b"begun\n"
KILL = b"K"
"""The service sends this byte after the request to end the helper at once. If the service itself ends, it sends no
byte, and the helper continues."""
UMASK = 0o027
_PATH = "/usr/local/bin:/usr/bin:/bin"
_KILL_LEAD_SECONDS = 0.5
"""How long before the deadline the helper kills its process group. At the deadline, a timer ends it in any case."""

Request = Mapping[str, Any]
Operation = Callable[[Request], dict[str, Any]]


def main() -> None:
    """Serve one request. An interpreter in isolated mode does it, so that the caller's environment has no effect."""
    if not sys.flags.isolated:
        os.execv(sys.executable, [sys.executable, "-I", os.path.abspath(__file__)])  # noqa: S606
    os.environ.clear()
    os.environ["PATH"] = _PATH
    os.umask(UMASK)
    os.chdir("/")
    with suppress(PermissionError):  # The process already leads a session.
        os.setsid()
    # Only the answer goes to standard output, whatever the operation prints.
    answer = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    try:
        request = read_request(os.fdopen(0, "rb", buffering=0, closefd=False))
        operation = _operation(request)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"the request is invalid: {error}")
    _limit_time(request["deadline"])
    # This fails if the service no longer waits: it may have concluded that nothing was done.
    answer.write(BEGUN)
    answer.write(json.dumps(_result(operation, request)).encode() + b"\n")


def read_request(stream: IO[bytes]) -> dict[str, Any]:
    """Read the request, which is one line, and leave later bytes to `_watch`.

    Raises:
        ValueError: it is not valid, or is for another account.
    """
    data = bytearray()
    while not data.endswith(b"\n"):
        chunk = stream.read(65536)
        if not chunk or len(data) > MAX_REQUEST_BYTES:
            raise ValueError("it is too long" if chunk else "it is incomplete")
        data += chunk
    request = json.loads(data)
    if not isinstance(request, dict) or not isinstance(request.get("deadline"), (int, float)):
        raise ValueError("no deadline")
    if request.get("uid") != os.getuid() or os.getuid() != os.geteuid():
        raise ValueError(f"it is for uid {request.get('uid')}, and this process has {os.getuid()}")
    if os.getuid() == 0:
        raise ValueError("root is nobody's account")
    return request


def _operation(request: Request) -> Operation:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from service.as_owner import operations

    return operations.OPERATIONS[request["operation"]]


def _result(operation: Operation, request: Request) -> dict[str, Any]:
    try:
        return {"result": operation(request)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000]}


def _limit_time(deadline: float) -> None:
    """End this process and its children at the deadline, or earlier if the service sends `KILL`."""
    remaining = max(deadline - time.monotonic(), 0.001)
    # A suspended process ends as soon as it is resumed.
    signal.setitimer(signal.ITIMER_REAL, remaining)
    threading.Thread(target=_watch, args=(deadline - _KILL_LEAD_SECONDS,), daemon=True).start()


def _watch(end: float) -> None:
    while (remaining := end - time.monotonic()) > 0:
        if select.select([0], [], [], remaining)[0]:
            if os.read(0, 1) == KILL:
                break
            # The service has ended. The operation continues: the service finds its outcome after the next start.
            time.sleep(max(0.0, end - time.monotonic()))
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
