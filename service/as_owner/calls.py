"""The service's side of the helper: starts it as the owner of a job, sends it a request and reads its answer."""

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

from service.as_owner import keeper, program
from service.as_owner.accounts import Account, Accounts
from service.core.settings import Settings
from service.core.thread_slots import SlotsTakenError, ThreadSlots

T = TypeVar("T")

HELPER = "trainyard-as-owner"
"""The name of the helper's program, beside the service's interpreter."""
FILE_SECONDS = 30.0
"""Time limit of operations on files, which a network filesystem may delay."""
REMOVE_SECONDS = 60.0
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024
_END_SECONDS = 2.0
"""How long the service waits for the end of a helper beyond its time limit."""
_KEEPER_SECONDS = 1.0
"""How long a keeper waits for that. The helper has then not ended by itself: it was stopped."""
_BRIEF_SECONDS = 5.0
"""How long a thread that serves all owners waits for a single owner."""
_OWNERS_AT_ONCE = 64


class OwnerCallError(Exception):
    """The helper did not carry out the request."""


class NotBegunError(OwnerCallError):
    """The helper did not begin, so it changed nothing."""


class NoAnswerError(OwnerCallError):
    """The helper began, or may have, and left no answer: it may have done all, some or none of the request."""


class OperationError(OwnerCallError):
    """The helper reports that the operation failed."""


@dataclass
class OwnerCalls:
    """Runs operations as the owners of jobs. All methods block, for at most their time limit and a few seconds."""

    accounts: Accounts
    helper: Path = field(default_factory=lambda: Path(sys.executable).with_name(HELPER))
    sudo: str = "sudo"
    _unreaped: "list[subprocess.Popen[bytes]]" = field(default_factory=list, init=False)
    """Helpers that had not ended when their calls did."""
    _slots: ThreadSlots = field(
        default_factory=lambda: ThreadSlots(each=1, total=_OWNERS_AT_ONCE, seconds=_BRIEF_SECONDS, wait_seconds=0),
        init=False,
    )

    def write(
        self,
        uid: int,
        runs: Path,
        job_id: str,
        *,
        folders: Sequence[str] = (),
        files: Sequence[tuple[str, int, str]] = (),
        seconds: float = FILE_SECONDS,
    ) -> None:
        """Make the run folder of a job if it does not exist, folders in it, and then files, each atomically.

        Args:
            folders: Relative to the run folder.
            files: Path relative to the run folder, mode, and content of each file.

        Raises:
            AccountError: the service cannot act as this account.
            OwnerCallError: not all of it was written, as far as is known.
        """
        request = {"runs": str(runs), "job": job_id, "folders": list(folders), "files": [list(file) for file in files]}
        self.call(uid, "write", request, seconds)

    def remove(
        self, uid: int, runs: Path, job_id: str, paths: Sequence[str], seconds: float = REMOVE_SECONDS
    ) -> list[str]:
        """Remove paths below the run folder of a job, without following links; a missing path counts as removed.

        Each path vanishes at once. Its remains have a name that begins with `.removed-`, and the next removal in this
        run folder finishes it.

        Args:
            paths: Relative to the run folder; `.` stands for the folder itself.

        Returns:
            Names in the run folder that are still to be removed, at most ten; empty: all is removed.

        Raises:
            AccountError: the service cannot act as this account.
            OwnerCallError: the removal failed, or did not end in time.
        """
        request = {"runs": str(runs), "job": job_id, "paths": list(paths)}
        left = self.call(uid, "remove", request, seconds).get("left")
        return [str(name)[:300] for name in left[:10]] if isinstance(left, list) else []

    def link(self, uid: int, runs: Path, job_id: str, source: str, target: str, seconds: float = FILE_SECONDS) -> None:
        """Link the files of a checkpoint into the run folder of a job, both of which belong to the account.

        Args:
            source: The checkpoint, relative to the folder of the runs.
            target: The new folder, relative to the run folder.

        Raises:
            FileNotFoundError: the checkpoint does not exist.
            AccountError: the service cannot act as this account.
            OwnerCallError: it cannot be linked, or is only in part.
        """
        request = {"runs": str(runs), "job": job_id, "source": source, "target": target}
        if self.call(uid, "link", request, seconds).get("missing"):
            raise FileNotFoundError(source)

    def command(
        self, uid: int, command: Sequence[str], environment: Mapping[str, str], seconds: float, text: str = ""
    ) -> tuple[int, str, str]:
        """Run a command, and return its exit status, output and error output.

        Args:
            text: Its input.

        Raises:
            AccountError: the service cannot act as this account.
            OwnerCallError: the outcome is unknown.
        """
        request = {"command": list(command), "environment": dict(environment), "text": text}
        result = self.call(uid, "command", request, seconds)
        try:
            return int(result["returncode"]), str(result["stdout"]), str(result["stderr"])
        except (KeyError, TypeError, ValueError):
            raise NoAnswerError("the helper's answer is not valid") from None

    def briefly(self, uid: int, call: Callable[[], T]) -> T:
        """Make a call for a thread that serves all owners, and wait for it for five seconds only.

        An owner can stop the helper. The call then goes on beside the thread, and counts as the owner's until it ends.

        Raises:
            NoAnswerError: it has not ended yet, or an earlier call for this owner has not.
        """
        try:
            return self._slots.call(f"uid {uid}", call)
        except SlotsTakenError:
            raise NoAnswerError(f"an earlier call as uid {uid} has not ended") from None
        except TimeoutError:
            raise NoAnswerError(f"the call as uid {uid} takes more than {_BRIEF_SECONDS:.0f} seconds") from None

    def call(
        self, uid: int, operation: str, request: Mapping[str, Any], seconds: float, *, held: int | None = None
    ) -> dict[str, Any]:
        """Run an operation to its end and return its result, which the owner may have made up.

        Args:
            seconds: Time limit, after which the helper and its child processes are killed.
            held: A descriptor that stays open until the helper has ended, even if the service ends before, and that no
                process of the owner gets.

        Raises:
            AccountError: the service cannot act as this account.
            NotBegunError: nothing was done.
            NoAnswerError: the outcome is unknown.
            OperationError: the operation failed.
        """
        account = self.accounts.get(uid)
        deadline = time.monotonic() + seconds
        data = json.dumps({**request, "operation": operation, "uid": uid, "deadline": deadline}).encode() + b"\n"
        self._reap()
        try:
            process = self._start(account, deadline, held)
        except (OSError, subprocess.SubprocessError) as error:
            raise NotBegunError(f"the helper cannot be started as {account.name}: {error}") from None
        with process.stdin as stdin, process.stdout as stdout, process.stderr as stderr:  # type: ignore[union-attr]
            exchange = _Exchange(data, stdin, stdout, stderr)
            ended = False
            try:
                ended = exchange.run(deadline + _END_SECONDS)
            finally:
                if not ended:
                    self._kill(process, stdin, has_keeper=held is not None)
        self._await_end(process)
        if not ended:
            raise NoAnswerError(f"the helper of {account.name} gave no valid answer within {seconds:.0f} seconds")
        return _parse(exchange.output, exchange.errors)

    def _start(self, account: Account, deadline: float, held: int | None) -> "subprocess.Popen[bytes]":
        # `--` ends sudo's options; the helper has none.
        command = [str(self.helper)]
        drop: dict[str, Any] = {}
        if os.geteuid() == 0:
            drop = {"user": account.uid, "group": account.gid, "extra_groups": account.groups}
        else:
            command = [self.sudo, "-n", "-u", account.name, "--", *command]
        if held is not None:
            end = str(deadline + _KEEPER_SECONDS)
            command = [sys.executable, "-I", keeper.__file__, json.dumps(drop), end, *command]
            drop = {}
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            cwd="/",
            start_new_session=True,
            pass_fds=() if held is None else (held,),
            umask=program.UMASK,
            **drop,
        )

    def _kill(self, process: "subprocess.Popen[bytes]", stdin: IO[bytes], *, has_keeper: bool) -> None:
        """Kill the helper and its children. No signal of an ordinary account reaches them through sudo.

        A keeper must outlive its helper, which it ends by itself.
        """
        with suppress(OSError):
            os.set_blocking(stdin.fileno(), False)
            os.write(stdin.fileno(), program.KILL)
        if os.geteuid() == 0 and not has_keeper:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def _await_end(self, process: "subprocess.Popen[bytes]") -> None:
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._unreaped.append(process)

    def _reap(self) -> None:
        self._unreaped = [process for process in self._unreaped if process.poll() is None]


def owner_calls(settings: Settings) -> OwnerCalls | None:
    """Return the calls of the helper; None where all jobs run as the service."""
    return OwnerCalls(Accounts(settings.munge_min_uid)) if settings.run_as == "owner" else None


def start_problem(settings: Settings) -> str | None:
    """Return why a service with these settings cannot act as the owners of jobs; None: nothing is known."""
    calls, is_root = owner_calls(settings), os.geteuid() == 0
    if calls is None:
        return None
    if settings.backend == "local" and not is_root:
        return "TRAINYARD_RUN_AS=owner with TRAINYARD_BACKEND=local needs a service that runs as root"
    if not os.access(calls.helper, os.X_OK):
        return f"TRAINYARD_RUN_AS=owner: {calls.helper} is missing; install the package trainyard[service] there"
    if not is_root and shutil.which(calls.sudo) is None:
        return "TRAINYARD_RUN_AS=owner: a service that does not run as root needs the program sudo"
    return None


class _Exchange:
    """One request and its answer."""

    def __init__(self, data: bytes, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self._rest = memoryview(data)
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr

    def run(self, end: float) -> bool:
        """Send the request and read to the end of the output; return whether that came in time and is not too long.

        Standard input stays open: its end would tell the helper that the service has ended.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stderr, selectors.EVENT_READ)
            for stream in (self._stdin, self._stdout, self._stderr):
                os.set_blocking(stream.fileno(), False)
            open_outputs = 2
            while open_outputs:
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready or len(self.output) > _MAX_ANSWER_BYTES:
                    return False
                for key, _ in ready:
                    if key.fileobj is self._stdin:
                        self._send(selector)
                    elif not self._receive(key.fileobj):
                        selector.unregister(key.fileobj)
                        open_outputs -= 1
        return True

    def _send(self, selector: selectors.BaseSelector) -> None:
        try:
            self._rest = self._rest[os.write(self._stdin.fileno(), self._rest) :]
        except BlockingIOError:
            return
        except OSError:
            self._rest = self._rest[:0]  # The helper ended early; its output states why.
        if not self._rest:
            selector.unregister(self._stdin)

    def _receive(self, stream: Any) -> bool:
        """Read the available data of a stream; return whether it may have more."""
        try:
            data = os.read(stream.fileno(), 65536)
        except BlockingIOError:
            return True
        if stream is self._stdout:
            self.output += data
        else:
            self.errors += data[: max(0, _MAX_ERROR_BYTES - len(self.errors))]
        return bool(data)


def _parse(output: bytes | bytearray, errors: bytes | bytearray) -> dict[str, Any]:
    """Return the result in the output of a helper that has ended.

    Raises:
        NotBegunError, NoAnswerError, OperationError: as `OwnerCalls.call`.
    """
    before, begun, answer = output.partition(program.BEGUN)
    message = _last_line(errors)
    if before or not begun:
        raise NotBegunError(f"the helper did not begin: {message}")
    try:
        parsed = json.loads(answer)
    except (ValueError, RecursionError):
        raise NoAnswerError(f"the helper ended without an answer: {message}") from None
    if isinstance(parsed, dict) and isinstance(parsed.get("error"), str):
        raise OperationError(_printable(parsed["error"]))
    if not isinstance(parsed, dict) or not isinstance(parsed.get("result"), dict):
        raise NoAnswerError("the helper's answer is not valid")
    return dict(parsed["result"])


def _last_line(errors: bytes | bytearray) -> str:
    lines = errors.decode(errors="replace").strip().splitlines()
    return _printable(lines[-1]) if lines else "it wrote no error"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:1000])
