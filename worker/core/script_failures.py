"""Failures of a user's program that are worth another start. Imports next to nothing, since torchrun waits for it."""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.terminal_text import clean
from worker.core.peer_errors import is_from_peer
from worker.core.rank_exits import RankExit

_TAIL_BYTES = 16 * 1024
_EXCEPTION_LINE = re.compile(
    r"^(?:\[rank\d+\]: ?)?(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit))(?:: ?(?P<message>.*))?$"
)
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_OWN_LINE = re.compile(r"[-\d]{10} [:\d]{8}\+\d{4} INFO rank \d+, attempt ")
"""The line that a rank writes before it becomes the program."""
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]*)", line (?P<line>\d+), in (?P<function>.*)$')
_TRACEBACK = "Traceback (most recent call last):"
_IN_CELL = re.compile(
    r"An error occurred while executing the following cell:\n-{10,}\n(?P<source>.*?)\n-{10,}\n"
    r'|Exception encountered at "In \[[\d ]+\]":',
    re.DOTALL,
)
_CELL_TRACEBACK = re.compile(r"^(?P<type>[A-Za-z_][\w.]*) +Traceback \(most recent call last\)$", re.MULTILINE)
_CELL_NUMBER = re.compile(r"^ *(?:Cell |Input )?In ?\[(\d+)\], line (\d+)", re.MULTILINE)
_CELL_LINE = re.compile(r"^-+> \d+ (.*)$", re.MULTILINE)
_WITH_DIGITS = re.compile(r"\w*\d\w*")
_SIGNATURE_LINES = 8
_ABORTED = "terminate called without an active exception"
"""Message of gloo's threads if they still run while the process ends with an error. It is not the cause."""
_FINAL_CODES = (2, 126, 127)
"""Exit codes of argparse, of a Python that cannot open the program, and of a shell that cannot start a program."""
_TIMEOUT_CODE = 124
"""Exit code of `timeout` whose time is over. Of another program it has no meaning."""
_RECIPE_END = re.compile(r"^(?:\S*/)?g?make(?:\[\d+\])?: \*\*\* \[.*\] (?:\w+ (?P<code>\d+)|.+)$", re.MULTILINE)
"""The message of make, which itself ends with 2, for the end of a recipe: `Error 3`, or the name of a signal."""

_TRANSIENT_TYPES = frozenset(
    {
        *("DistBackendError", "DistNetworkError", "DistStoreError", "DistQueueEmptyError"),
        *("ConnectionError", "ConnectionResetError", "ConnectionAbortedError", "ConnectionRefusedError"),
        *("BrokenPipeError", "TimeoutError", "EOFError", "MemoryError", "OutOfMemoryError", "AcceleratorError"),
        "KeyboardInterrupt",
        *("HTTPError", "HTTPException", "ConnectTimeout", "ReadTimeout", "SSLError", "URLError", "RemoteProtocolError"),
    }
)
"""Exceptions with causes outside of the program: another rank, the network, memory or a device."""
_TRANSIENT_TEXTS = (
    *("nccl", "gloo", "connection closed by peer", "connection reset", "broken pipe", "timed out", "timeout"),
    *("cuda error", "cublas", "cudnn", "ecc error", "uncorrectable", "xid", "hip error", "out of memory"),
    *("cannot allocate memory", "can't allocate memory", "not enough memory", "bus error"),
    *("stale file handle", "input/output error", "transport endpoint", "no space left", "disk quota", "read-only file"),
    *("temporary failure", "resource temporarily unavailable", "worker (pid", "dataloader worker"),
)
"""Parts of messages, in lower case, with causes outside of the program."""


@dataclass(frozen=True)
class ProgramError:
    """The exception that ended a rank's program."""

    type: str
    message: str
    related: tuple[tuple[str, str], ...] = ()
    """The names of its base classes, its causes and the exceptions of its group, each with its message."""
    cell: str = ""
    """The cell of a notebook, and its text."""

    @property
    def shown(self) -> str:
        """The message for users."""
        return f"{self.message}{self.cell}"


def read_tail(log: Path, start: int = 0) -> str:
    """Return the clean end of a log, from the byte `start` on; an empty text if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
            return clean(file.read().decode(errors="replace"))
    except OSError:
        return ""


def error_of(end: RankExit, tail: str) -> ProgramError | None:
    """Return the exception that ended a rank; None if there was no exception, or it is not known.

    A record of our hook or `@record` takes precedence. The log is the fallback where neither ran, as in programs of
    other languages, since it also has the exceptions that a program caught.

    Args:
        tail: The end of the rank's log.
    """
    if exception := end.hook.get("exception"):
        return _recorded(exception)
    if end.hook:
        # Python ends with 1 after it has printed the text of a SystemExit.
        text = end.hook.get("exit") if end.exitcode == 1 else None
        return None if text is None else ProgramError("SystemExit", str(text))
    if end.message:
        name, _, message = end.message.partition(":")
        return ProgramError(name, message.strip()) if _NAME.fullmatch(name) else find_error(end.message)
    return notebook_error(tail.rpartition(_TRACEBACK)[2]) or find_error(tail)


def _recorded(exception: Mapping[str, Any]) -> ProgramError:
    """Return the exception that the hook has described; see `worker.environment.program_hook`."""
    described = [exception, *exception.get("causes", ()), *exception.get("parts", ())]
    related = [(str(name), str(one.get("message", ""))) for one in described for name in one.get("bases", ())]
    message = "\n".join([str(exception.get("message", "")), *map(str, exception.get("notes", ()))])
    type_ = str(exception.get("type", "Exception"))
    if in_notebook := notebook_error(clean(message)):
        return replace(in_notebook, related=((type_, ""),))
    # Pools and loaders raise an exception whose message has the traceback of their worker.
    if inner := _quoted(message):
        return ProgramError(*inner, ((type_, message), *related))
    return ProgramError(type_, message, tuple(related))


def _quoted(message: str) -> tuple[str, str] | None:
    """Return type and message of the exception whose traceback a message ends with; None if it has none."""
    _, header, text = message.rpartition(_TRACEBACK)
    lines = [line for line in text.splitlines() if line and not line.startswith(" ")] if header else []
    match = re.fullmatch(r"([A-Za-z_][\w.]*)(?:: ?(.*))?", lines[0]) if lines else None
    return (match[1], "\n".join([match[2] or "", *lines[1:]]).strip()) if match else None


def notebook_error(text: str) -> ProgramError | None:
    """Return the exception of a notebook's cell, with the cell, from the message of nbconvert or papermill."""
    match = _IN_CELL.search(text)
    if match is None:
        return None
    report = text[match.end() :]
    header = _CELL_TRACEBACK.search(report)
    line = next(
        (line for line in reversed(report.splitlines()) if header and f"{line}:".startswith(f"{header['type']}:")), None
    )
    error = find_error(report) if line is None else ProgramError(*(line.partition(": ")[::2]))
    number, code = _CELL_NUMBER.search(report), _CELL_LINE.search(report)
    if error is None:
        return None
    at = f"cell {number[1]}, line {number[2]}" if number else "a cell"
    at += f": {code[1].strip()}" if code else ""
    source = match["source"]
    return replace(error, cell=f" (in {at})" + (f"\n\n{source.strip()}" if source else ""))


def find_error(text: str) -> ProgramError | None:
    """Return the last exception in the end of a log."""
    match = next((match for line in reversed(text.split("\n")) if (match := _EXCEPTION_LINE.match(line))), None)
    return ProgramError(match["type"], match["message"] or "") if match else None


def last_line(text: str) -> str:
    """Return the last non-empty line of a program's output, at most 300 characters of it."""
    lines = (line.strip() for line in reversed(text.splitlines()) if not _OWN_LINE.match(line))
    return next((line[:300] for line in lines if line), "")


def raised_before_abort(text: str) -> bool:
    """Return whether the program raised an exception before the process was aborted while it exited."""
    lines = ["", "", *text.splitlines()]
    return lines[-1] == _ABORTED and _EXCEPTION_LINE.match(lines[-2]) is not None


def is_final(error: ProgramError | None, exitcode: int, command: Sequence[str] = (), tail: str = "") -> bool:
    """Return whether a rank that ended in this way would end in the same way again.

    An exception in the program's own code, or a code such as 2, would occur again. A signal, or an error from another
    rank, a network, a filesystem or a device, need not. After an exit code without an exception, the start is repeated.

    Args:
        exitcode: The exit code of the rank; negative: the number of the signal that ended it.
        command: The arguments of the rank's program.
        tail: The end of the rank's log.
    """
    if exitcode < 0 and not (exitcode == -signal.SIGABRT and error is not None):
        return False
    if error is None:
        code = _code_of_recipe(exitcode, command, tail)
        return code in _FINAL_CODES or (code == _TIMEOUT_CODE and _names(command, "timeout"))
    return not any(_is_transient(name, text) for name, text in ((error.type, error.message), *error.related))


def _code_of_recipe(exitcode: int, command: Sequence[str], tail: str) -> int | None:
    """Return the exit code of the recipe that failed first, if the command has make, and None if a signal ended it; of
    other programs, the exit code."""
    match = _RECIPE_END.search(tail) if _names(command, "make") else None
    if match is None:
        return exitcode
    return int(match["code"]) if match["code"] else None


def _names(command: Sequence[str], program: str) -> bool:
    """Return whether the command, or its text for a shell, has the program or GNU's under its other name."""
    call = re.compile(rf"(?:^|[\s;&|('\"/])g?{program}\s")
    return any(call.search(f"{word} ") for word in command)


def _is_transient(name: str, text: str) -> bool:
    return name.rpartition(".")[2] in _TRANSIENT_TYPES or any(part in text.lower() for part in _TRANSIENT_TEXTS)


def with_tails(layout: AttemptLayout, exits: Sequence[RankExit]) -> list[tuple[RankExit, str]]:
    """Return the failed ranks, each with the end of its log."""
    return [(end, read_tail(layout.rank_log(end.rank))) for end in exits]


def are_final(ends: Sequence[tuple[RankExit, str]]) -> bool:
    """Return whether a start with these failed ranks would fail again: a rank failed finally, and none transiently.

    Args:
        ends: The failed ranks, each with the end of its log.
    """
    verdicts = [_verdict(end, tail) for end, tail in ends]
    return any(verdicts) and not any(verdict is False for verdict in verdicts)


def signature_of(end: RankExit, tail: str) -> str:
    """Return the exit code and the last lines of the traceback, or of the log without a traceback. Text that differs
    between two starts is left out: folders, and words with digits such as addresses and process ids.

    The signature is empty if the program did not cause the end: after a signal, or when another rank was lost.
    """
    if end.exitcode <= 0 and not (end.exitcode == -signal.SIGABRT and raised_before_abort(tail)):
        return ""
    error = error_of(end, tail)
    if error is not None and is_from_peer(error.message):
        return ""
    lines = [line for line in _last_traceback(end.traceback or tail) if line.strip()]
    return "\n".join([str(end.exitcode), *map(_without_numbers, lines[-_SIGNATURE_LINES:])]) if lines else ""


def are_repeated(before: Sequence[RankExit], after: Sequence[RankExit]) -> bool:
    """Return whether a start failed in the same way as the previous start: a rank left the same signature, and no
    signal ended any rank, except torchrun's signal to the peers of a failed rank."""
    if any(end.exitcode < 0 and not end.signature and end.exitcode != -signal.SIGTERM for end in (*before, *after)):
        return False
    return bool({end.signature for end in before if end.signature} & {end.signature for end in after})


def _last_traceback(text: str) -> list[str]:
    """Return the lines up to the last exception, from the traceback's first; all lines if there is no exception."""
    lines = [_RANK_PREFIX.sub("", line) for line in text.splitlines()]
    ends = [index for index, line in enumerate(lines) if _EXCEPTION_LINE.match(line)]
    if not ends:
        return lines
    starts = [index for index in range(ends[-1]) if lines[index].startswith("Traceback (most recent")]
    return lines[starts[-1] if starts else ends[-1] : ends[-1] + 1]


def _without_numbers(line: str) -> str:
    if frame := _FRAME.match(line):
        # Each attempt has its own folder.
        return f"{Path(frame['path']).name}:{frame['line']} {frame['function']}"
    return _WITH_DIGITS.sub("#", line)[:500]


def _verdict(end: RankExit, tail: str) -> bool | None:
    """Return whether the end is final; None if torchrun ended the rank because another rank failed."""
    if end.exitcode == -signal.SIGTERM:
        return None
    aborted = end.exitcode == -signal.SIGABRT
    error = error_of(end, tail) if not aborted or raised_before_abort(tail) else None
    return is_final(error, end.exitcode, end.command, tail)
