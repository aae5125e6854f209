"""Reading, after a restore, the attempts in a run directory that the database does not know.

The job can write to its run directory, so all of this is untrusted, as in `run_dir`.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

import structlog
from pydantic import ValidationError

from service.auth.tokens import parse_token
from service.core.untrusted_files import UntrustedFiles
from service.db.models import Job
from service.reconciler.run_dir import read_claim, read_exit_record
from trainyard.contract.layout import RunLayout, attempt_folder_name
from trainyard.contract.wire.launch import CurrentAttempt, LaunchDocument
from trainyard.contract.wire.reports import Claim, FinishRecord

_MAX_BYTES = 4 * 1024 * 1024
_MAX_FOLDERS = 1000
"""Entries of `attempts` that are looked at."""
_MAX_RESTARTS = 100
_LAST_ATTEMPT = 1_000_000
_LAST_EXECUTION = 999_999
"""Names of files have six digits for an execution."""
_ATTEMPT_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_TAG = re.compile(r"ty-[a-z0-9]{1,12}-([0-9a-f]{16})", re.ASCII)

log = structlog.get_logger("adoption")


@dataclass(frozen=True)
class UnknownAttempt:
    """An attempt that was prepared after the backup."""

    folder: str
    """Name of its folder."""
    launch: LaunchDocument
    token_hash: str
    claim: Claim | None
    exit_record: FinishRecord | None

    @property
    def next_execution(self) -> int:
        """The first execution of the next attempt."""
        return self.launch.execution + self.launch.max_restarts + 1


def read_unknown_attempts(
    files: UntrustedFiles, run: RunLayout, job: Job, known: Collection[str]
) -> list[UnknownAttempt]:
    """Return the attempts that the database lacks, oldest first; the last is the current attempt.

    The list is empty if `current.json` names an attempt that the database has: no later attempt was submitted.

    Args:
        known: Ids of the job's attempts in the database.
    """
    current = read_current(files, run)
    if current is None or current.attempt_id in known:
        return []
    readings = (_read(files, run, name, job.id, known) for name in _folder_names(files, run))
    attempts = [attempt for attempt in readings if attempt is not None]
    number, execution, result = job.attempts, job.next_execution, []
    for attempt in sorted(attempts, key=lambda attempt: attempt.launch.execution):
        if attempt.launch.execution < execution or attempt.launch.attempt <= number:
            log.warning("attempt contradicts the database and is not adopted", job=job.id, folder=attempt.folder)
            continue
        result.append(attempt)
        number, execution = attempt.launch.attempt, attempt.next_execution
        if attempt.launch.attempt_id == current.attempt_id:
            return result
    return []


def read_current(files: UntrustedFiles, run: RunLayout) -> CurrentAttempt | None:
    """Return the attempt that `current.json` names; None if the file cannot be read or names no attempt."""
    try:
        current = CurrentAttempt.model_validate_json(files.read(run.current, 0, _MAX_BYTES))
    except (OSError, ValidationError):
        return None
    return current if _ATTEMPT_ID.fullmatch(current.attempt_id) else None


def _folder_names(files: UntrustedFiles, run: RunLayout) -> list[str]:
    try:
        return files.list_names(run.attempts, _MAX_FOLDERS)
    except OSError:
        return []


def _read(
    files: UntrustedFiles, run: RunLayout, name: str, job_id: str, known: Collection[str]
) -> UnknownAttempt | None:
    """Return the attempt of a folder; None if the attempt is known, incomplete, or does not match the folder's name."""
    folder = run.attempt(name)
    try:
        launch = LaunchDocument.model_validate_json(files.read(folder.launch, 0, _MAX_BYTES))
        token = parse_token(files.read(folder.token, 0, 1000).decode().strip())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("attempt cannot be read", job=job_id, folder=name, error=str(error).splitlines()[0])
        return None
    tag = _TAG.fullmatch(launch.tag)
    is_consistent = (
        launch.job_id == job_id
        and name in (attempt_folder_name(launch.attempt, launch.attempt_id), str(launch.attempt))
        and _ATTEMPT_ID.fullmatch(launch.attempt_id) is not None
        and launch.attempt <= _LAST_ATTEMPT
        and tag is not None
        and tag[1] == launch.attempt_id
        and launch.max_restarts <= _MAX_RESTARTS
        and launch.execution + launch.max_restarts <= _LAST_EXECUTION
        and token is not None
        and (token.kind, token.id) == ("worker", launch.attempt_id)
    )
    if not is_consistent or token is None:
        log.warning("attempt is inconsistent and is not adopted", job=job_id, folder=name)
        return None
    if launch.attempt_id in known:
        return None
    executions = range(launch.execution, launch.execution + launch.max_restarts + 1)
    record = read_exit_record(files, folder, executions)
    return UnknownAttempt(name, launch, token.hash, read_claim(files, folder), record)
