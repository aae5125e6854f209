"""Reading what an attempt leaves in its folder: claim, exit record and the scheduler's error log.

The job can write to the folder, so its content is untrusted: only regular files of bounded size are read, links are
not followed, and nothing is executed or unpickled.
"""

import re
import stat
from dataclasses import dataclass

import structlog
from pydantic import ValidationError

from service.core.untrusted_files import list_names, read_regular_file
from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.wire.reports import Claim, FinishRecord

_MAX_RECORD_BYTES = 1024 * 1024
_MAX_LOG_BYTES = 16 * 1024
_MAX_ENTRIES = 1000
"""Entries of a folder that are read."""
_MAX_LOGS = 20
"""Error logs of one attempt that are read: one for each of its entries in the scheduler's queue."""
_MAX_ERROR_CHARS = 500
_CONSEQUENCE = re.compile(r"srun: |slurmstepd\S*: error: \*\*\*")
"""Log lines that report the end of a step, not its cause."""

log = structlog.get_logger("run-dir")


@dataclass(frozen=True)
class UnclaimedAttempt:
    """What the folder shows of an attempt that no worker has claimed from the service."""

    started: bool = False
    """A worker wrote a claim file: it runs or ran without reaching the service."""
    startup_error: str = ""
    """For an ended attempt without a claim: the last relevant line of the scheduler's error log."""


def owns_run_folder(run: RunLayout, uid: int | None) -> bool:
    """Return whether a run folder, if it exists, belongs to the Unix account of the job; None: the service's.

    Where jobs run as their owners, anybody can create a folder under the name of any job.
    """
    try:
        status = run.root.lstat()
    except OSError:
        return True
    return uid is None or (stat.S_ISDIR(status.st_mode) and status.st_uid == uid)


def has_vanished(folder: AttemptLayout) -> bool:
    """Return whether the folder of a prepared attempt, or its launch document, was deleted."""
    try:
        folder.launch.lstat()
    except (FileNotFoundError, NotADirectoryError):
        # A folder that cannot be read for another reason, such as an unmounted filesystem, may come back.
        return folder.root.parents[2].is_dir()
    except OSError:
        return False
    return False


def read_exit_record(folder: AttemptLayout, executions: range) -> FinishRecord | None:
    """Return the exit record of the highest of these executions that has one which can be read.

    Only the files of the attempt's own executions are opened: the job may have written any number of others.
    """
    problem: str | None = None
    for execution in reversed(executions):
        path = folder.finish(execution)
        try:
            return FinishRecord.model_validate_json(read_regular_file(path, 0, _MAX_RECORD_BYTES))
        except FileNotFoundError:
            continue
        except (OSError, ValidationError) as error:
            problem = problem or f"{path.name}: {str(error).splitlines()[0]}"
    if problem is not None:
        log.warning("exit record cannot be read", folder=str(folder.root), error=problem)
    return None


def read_claimant(folder: AttemptLayout) -> str | None:
    """Return the scheduler id in the claim file, if there is one."""
    claim = read_claim(folder)
    return claim.scheduler_id if claim else None


def read_unclaimed(folder: AttemptLayout, *, ended: bool) -> UnclaimedAttempt:
    """Return what the folder shows of an attempt whose claim did not reach the service."""
    if read_claim(folder) is not None:
        return UnclaimedAttempt(started=True)
    return UnclaimedAttempt(startup_error=_read_startup_error(folder) if ended else "")


def startup_error_in(text: str) -> str:
    """Return the last line of a log that names a cause, at most 500 printable characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if not _CONSEQUENCE.match(line)]
    return "".join(c if c.isprintable() else "?" for c in (causes or lines or [""])[-1])[:_MAX_ERROR_CHARS]


def read_claim(folder: AttemptLayout) -> Claim | None:
    try:
        return Claim.model_validate_json(read_regular_file(folder.claim, 0, _MAX_RECORD_BYTES))
    except (OSError, ValidationError):
        return None


def _read_startup_error(folder: AttemptLayout) -> str:
    try:
        names = [name for name in list_names(folder.submitit, _MAX_ENTRIES) if name.endswith("_log.err")]
    except OSError:
        return ""
    for path in [folder.submitit / name for name in names[:_MAX_LOGS]]:
        try:
            end = path.lstat().st_size
            text = read_regular_file(path, max(0, end - _MAX_LOG_BYTES), _MAX_LOG_BYTES).decode(errors="replace")
        except OSError:
            continue
        if error := startup_error_in(text):
            return error
    return ""
