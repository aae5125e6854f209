"""Errors of the worker, and the error file that a failed rank writes."""

import contextlib
import os
import socket
import time
import traceback
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from trainyard.contract.base import SanitizedText
from trainyard.contract.layout import write_atomic
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.terminal_text import clean
from trainyard.contract.wire.reports import MAX_NAME, Failure
from worker.core.memory_hints import memory_hint
from worker.core.peer_errors import is_from_peer

_OOM_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
_DISK_TEXTS = ("no space left on device", "disk quota exceeded", "read-only file system")
_MISSING_MODULE = (
    "Install it in the Python that runs the program, or choose another: `trainyard run --venv`, `environment.venv`. "
    "A module of your own must be in the uploaded folder."
)


class TrainingError(Exception):
    """The run cannot go on, for a reason that a user can fix; `hint` suggests how. Raised on all ranks alike. It would
    occur again, so it ends the execution without an in-place restart."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class DivergedError(TrainingError):
    """The loss, or the gradients at any loss scale, are not finite. The contract names this class in `DIVERGED`."""


class RefusedError(TrainingError):
    """The spec, or a file or code that it names, cannot be trained. Raised before the first step; ends the job as
    `rejected`."""


RankErrorReason = Literal["error", "out_of_memory", "disk_full", "rejected"]


class RankError(BaseModel):
    """The content of `errors/rank-<r>.json`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int
    execution: int
    reason: RankErrorReason
    consequence: bool
    """Whether the rank failed only because another rank had failed."""
    type: SanitizedText
    message: SanitizedText
    traceback: SanitizedText
    hint: SanitizedText | None
    final: bool = False
    """Whether the error would occur again in another attempt."""
    time: float
    host: str
    pid: int
    exit_code: int | None = None
    """The program's exit code; after a signal, 128 and its number, as shells state it."""


def describe(error: BaseException, *, rank: int, execution: int, spec: TrainingSpec | None = None) -> RankError:
    """Return the record of an exception; with the spec, an out-of-memory error gets a hint."""
    text = str(error)
    memory = is_out_of_memory(error)
    return RankError(
        rank=rank,
        execution=execution,
        reason=_reason(error, memory),
        consequence=is_from_peer(text),
        type=type(error).__name__,
        message=clean(text)[:8000],
        traceback=clean("".join(traceback.format_exception(error)))[-60000:],
        hint=memory_hint(spec, on_device=_on_device(error)) if memory and spec else getattr(error, "hint", None),
        final=isinstance(error, TrainingError),
        time=time.time(),
        host=socket.gethostname(),
        pid=os.getpid(),
    )


def describe_foreign_error(
    type_: str,
    message: str,
    *,
    traceback: str,
    rank: int,
    execution: int,
    time: float,
    host: str,
    pid: int,
    exit_code: int,
    final: bool,
) -> RankError:
    """Return the record of an error of the user's program, of which only type, message and exit code are known.

    Args:
        exit_code: Negative: the number of the signal.
        final: Whether the error would occur again.
    """
    memory = type_ == "MemoryError" or type_.endswith("OutOfMemoryError") or _mentions_memory(message)
    return RankError(
        rank=rank,
        execution=execution,
        reason="out_of_memory" if memory else "disk_full" if _mentions_disk(message) else "error",
        consequence=is_from_peer(message),
        type=type_,
        message=clean(message)[:8000],
        traceback=clean(traceback)[-60000:],
        hint=_MISSING_MODULE if type_ == "ModuleNotFoundError" else None,
        final=final,
        exit_code=exit_code if exit_code >= 0 else 128 - exit_code,
        time=time,
        host=host,
        pid=pid,
    )


def _reason(error: BaseException, memory: bool) -> RankErrorReason:
    if isinstance(error, RefusedError):
        return "rejected"
    if memory:
        return "out_of_memory"
    return "disk_full" if is_disk_full(error) else "error"


def to_failure(error: RankError) -> Failure:
    """Return the error as a failure for the exit record."""
    return Failure(
        rank=error.rank,
        host=error.host,
        type=error.type[:MAX_NAME],
        message=error.message,
        traceback=error.traceback,
        hint=error.hint[:MAX_NAME] if error.hint else None,
        final=error.final,
        consequence=error.consequence,
        exit_code=error.exit_code,
    )


def write_error(path: Path, record: RankError) -> None:
    write_atomic(path, record.model_dump_json())


def read_errors(folder: Path, execution: int | None = None) -> list[RankError]:
    """Return the readable records of an execution, or of all executions, the earliest first."""
    errors = []
    for path in folder.glob("rank-*.json"):
        with contextlib.suppress(OSError, ValueError):
            errors.append(RankError.model_validate_json(path.read_bytes()))
    return sorted((e for e in errors if execution in (None, e.execution)), key=lambda error: error.time)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether device or host memory ran out. Compares names, so that it need not import torch."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | OSError) and _mentions_memory(str(error))


def is_disk_full(error: BaseException) -> bool:
    """Return whether a filesystem, perhaps in an earlier exception, was full, over quota or read-only."""
    chain: list[BaseException] = []
    while error not in chain and len(chain) < 20:
        chain.append(error)
        error = error.__cause__ or error.__context__ or error
    return any(isinstance(each, OSError) and _mentions_disk(str(each)) for each in chain)


def _mentions_disk(message: str) -> bool:
    return any(text in message.lower() for text in _DISK_TEXTS)


def _mentions_memory(message: str) -> bool:
    return any(text in message.lower() for text in _OOM_TEXTS)


def _on_device(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or "cuda" in str(error).lower()
