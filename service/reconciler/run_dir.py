"""Reading an attempt's files in its folder: claim, exit record and the scheduler's error log.

The job can write to the folder, so its content is untrusted: only regular files of bounded size are read, links are
not followed, and nothing is executed or unpickled.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from pydantic import ValidationError

from service.core.untrusted_files import ForeignFileError, UntrustedFiles
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.terminal_text import clean
from trainyard.contract.wire.reports import Claim, FinishRecord

_MAX_RECORD_BYTES = 1024 * 1024
_MAX_LOG_BYTES = 16 * 1024
_MAX_ENTRIES = 1000
"""Entries of a folder that are read."""
_MAX_LOGS = 20
"""Maximum number of error logs read per attempt; each of its entries in the scheduler's queue has one."""
_MAX_ERROR_CHARS = 500
_LOGS = ("_log.out", "_log.err")
"""How the names of Slurm's logs of an attempt end."""
_CONSEQUENCE = re.compile(r"srun: |slurmstepd\S*: error: \*\*\*")
"""Log lines that report the end of a step, not its cause."""
_OUT_OF_MEMORY = re.compile(
    r"slurmstepd\S*: error: .*(oom.kill event|exceeded \S* ?memory limit)|srun: error: \S+: tasks? \S+: out of memory",
    re.IGNORECASE,
)
"""Log lines about a step that exceeded its memory. Slurm's state of the job may be FAILED alone."""

log = structlog.get_logger("run-dir")


@dataclass(frozen=True)
class UnclaimedAttempt:
    """The traces in the folder of an attempt that no worker has claimed from the service."""

    started: bool = False
    """A worker wrote a claim file: it runs or ran without reaching the service."""
    startup_error: str = ""
    """For an ended attempt without a claim: the last relevant line of the scheduler's error log."""
    vanished: bool = False
    """For an ended attempt without a claim: its folder was deleted, so that it could start on no node."""
    no_output: bool = field(default=False, compare=False)
    """For an ended attempt without a claim: the folder is there, without the log that Slurm creates at the start. Slurm
    24.11 makes missing folders of logs on a node without the mount. The attempt may have never started, too."""


def has_vanished(files: UntrustedFiles, folder: AttemptLayout) -> bool:
    """Return whether the folder of a prepared attempt, or its launch document, was deleted."""
    try:
        files.status(folder.launch)
    except (FileNotFoundError, NotADirectoryError, ForeignFileError):
        # A folder that cannot be read for another reason, such as an unmounted filesystem, may come back.
        return files.base.is_dir()
    except OSError:
        return False
    return False


def read_exit_record(files: UntrustedFiles, folder: AttemptLayout, executions: range) -> FinishRecord | None:
    """Return the readable exit record of the highest of these executions; None without any.

    Only the files of the attempt's own executions are opened: the job may have written any number of others.
    """
    problem: str | None = None
    for execution in reversed(executions):
        path = folder.finish(execution)
        try:
            return FinishRecord.model_validate_json(files.read(path, 0, _MAX_RECORD_BYTES))
        except FileNotFoundError:
            continue
        except (OSError, ValidationError) as error:
            problem = problem or f"{path.name}: {str(error).splitlines()[0]}"
    if problem is not None:
        log.warning("exit record cannot be read", folder=str(folder.root), error=problem)
    return None


def read_claimant(files: UntrustedFiles, folder: AttemptLayout) -> str | None:
    """Return the scheduler id in the claim file, if it has an id."""
    claim = read_claim(files, folder)
    return claim.scheduler_id if claim else None


def read_unclaimed(files: UntrustedFiles, folder: AttemptLayout, *, ended: bool) -> UnclaimedAttempt:
    """Return the traces in the folder of an attempt whose claim did not reach the service."""
    if read_claim(files, folder) is not None:
        return UnclaimedAttempt(started=True)
    if not ended:
        return UnclaimedAttempt()
    error, vanished = _read_startup_error(files, folder), has_vanished(files, folder)
    return UnclaimedAttempt(
        startup_error=error, vanished=vanished, no_output=not vanished and _lacks_logs(files, folder)
    )


def startup_error_in(text: str) -> str:
    """Return the last line of a log that names a cause, at most 500 printable characters."""
    lines = [line.strip() for line in clean(text).splitlines() if line.strip()]
    causes = [line for line in lines if not _CONSEQUENCE.match(line)]
    return "".join(c if c.isprintable() else "?" for c in (causes or lines or [""])[-1])[:_MAX_ERROR_CHARS]


def memory_error_in(text: str) -> str:
    """Return the first line of a log in which Slurm reports a lack of memory, at most 500 printable characters."""
    lines = (line.strip() for line in clean(text).splitlines() if _OUT_OF_MEMORY.match(line.strip()))
    return "".join(c if c.isprintable() else "?" for c in next(lines, ""))[:_MAX_ERROR_CHARS]


def read_memory_error(files: UntrustedFiles, folder: AttemptLayout) -> str:
    """Return the line of the scheduler's error logs that reports a lack of memory; empty if there is none."""
    return next(filter(None, map(memory_error_in, _error_logs(files, folder))), "")


def read_claim(files: UntrustedFiles, folder: AttemptLayout) -> Claim | None:
    try:
        return Claim.model_validate_json(files.read(folder.claim, 0, _MAX_RECORD_BYTES))
    except (OSError, ValidationError):
        return None


def _lacks_logs(files: UntrustedFiles, folder: AttemptLayout) -> bool:
    try:
        return not any(name.endswith(_LOGS) for name in files.list_names(folder.submitit, _MAX_ENTRIES))
    except OSError:
        return False


def _read_startup_error(files: UntrustedFiles, folder: AttemptLayout) -> str:
    return next(filter(None, map(startup_error_in, _error_logs(files, folder))), "")


def _error_logs(files: UntrustedFiles, folder: AttemptLayout) -> Iterator[str]:
    """Yield the ends of the scheduler's error logs."""
    try:
        names = [name for name in files.list_names(folder.submitit, _MAX_ENTRIES) if name.endswith("_log.err")]
    except OSError:
        return
    for path in [folder.submitit / name for name in names[:_MAX_LOGS]]:
        with suppress(OSError):
            end = files.status(path).st_size
            yield files.read(path, max(0, end - _MAX_LOG_BYTES), _MAX_LOG_BYTES).decode(errors="replace")
