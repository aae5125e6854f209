"""What an attempt leaves in its folder beside its reports: who claimed it, its last word, and why it never began.

The folder is written by the job, so it is read as a stranger's: regular files only, of bounded size, never followed
out of the folder, and nothing in it is ever executed or unpickled.
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

import structlog
from pydantic import ValidationError

from service.scheduler.slurm.files import submitit_folder
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import Claim, FinishRecord

MAX_FINISH = 1024 * 1024
_MAX_ERRORS = 16 * 1024
_MAX_WORDS = 500
_ABOUT_OTHERS = re.compile(r"srun: |slurmstepd\S*: error: \*\*\*")
"""Lines that only say that something ended, not why."""

log = structlog.get_logger("traces")


@dataclass(frozen=True)
class Unclaimed:
    """What the folder tells of an attempt that no worker has claimed from the service."""

    began: bool = False
    """A worker has claimed it by a file: it runs, or ran, without reaching the service."""
    reason: str = ""
    """Once it is over and never began: what stood last in the scheduler's own log of it."""


def read_finish(folder: AttemptLayout) -> FinishRecord | None:
    """The last word of the attempt's highest execution, if there is one that can be read."""
    for path in sorted(folder.root.glob("finish-*.json"), reverse=True):
        try:
            content = read_regular(path, 0, MAX_FINISH)
            return FinishRecord.model_validate_json(content)
        except (OSError, ValidationError) as error:
            log.warning("finish record cannot be read", path=str(path), error=str(error))
    return None


def read_claimant(folder: AttemptLayout) -> str | None:
    """The scheduler's id of the job that claimed the attempt, if it wrote one down."""
    claim = _read_claim(folder)
    return claim.scheduler_id if claim else None


def read_unclaimed(folder: AttemptLayout, *, over: bool) -> Unclaimed:
    """Of an attempt that the service has no claim of."""
    if _read_claim(folder) is not None:
        return Unclaimed(began=True)
    return Unclaimed(reason=_reason(folder) if over else "")


def reason_in(text: str) -> str:
    """The line of a log that says why nothing began: the last that is not only about the end of others. Pure."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    why = [line for line in lines if not _ABOUT_OTHERS.match(line)]
    return "".join(c if c.isprintable() else "?" for c in (why or lines or [""])[-1])[:_MAX_WORDS]


def read_regular(path: Path, offset: int, size: int) -> bytes:
    """Bytes of a regular file; a link or a pipe in its place is an error, not a way out."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        file.seek(offset)
        return file.read(size)


def _read_claim(folder: AttemptLayout) -> Claim | None:
    try:
        return Claim.model_validate_json(read_regular(folder.claim, 0, MAX_FINISH))
    except (OSError, ValidationError):
        return None


def _reason(folder: AttemptLayout) -> str:
    for path in sorted(submitit_folder(folder.root).glob("*_log.err")):
        try:
            end = path.lstat().st_size
            text = read_regular(path, max(0, end - _MAX_ERRORS), _MAX_ERRORS).decode(errors="replace")
        except OSError:
            continue
        if reason := reason_in(text):
            return reason
    return ""
