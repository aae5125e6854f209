"""Submission of an attempt to Slurm as its owner, and the ids that a submission leaves in the attempt's folder."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.as_owner.accounts import AccountError, UnknownAccountError
from service.as_owner.calls import NotBegunError, OwnerCallError, OwnerCalls
from service.core.untrusted_files import files_of_attempt
from service.scheduler.base import SUBMITTER_MARGIN_SECONDS, Accepted, Ambiguous, Postponed, Rejected, SubmitOutcome
from service.scheduler.slurm.sbatch_output import parse_sbatch_output
from service.scheduler.slurm.submit import ANSWER_FILE
from trainyard.contract.layout import AttemptLayout

_MAX_ENTRIES, _MAX_RECORDED = 1000, 20
"""Entries of an attempt's folder that are read, and submissions that are taken from it: a job may fill it."""
_MAX_RECORD = 64 * 1024
_MAX_OUTPUT = 4000
"""Characters of sbatch's output that are read: the helper's answer is the owner's word."""
_SUBMITTER = "service.scheduler.slurm.submit:submit_request"
_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


def submit_as_owner(owners: OwnerCalls, uid: int, request: Mapping[str, Any], seconds: float) -> SubmitOutcome:
    """Submit an attempt as the Unix account of its owner.

    Args:
        request: The submitter's request.
        seconds: Time limit of sbatch.
    """
    folder = Path(request["folder"])
    try:
        result = owners.call(uid, "submit", {**request, "submitter": _SUBMITTER}, seconds + SUBMITTER_MARGIN_SECONDS)
        outcome = parse_sbatch_output(*_checked(result))
    except (UnknownAccountError, NotBegunError) as error:
        return Postponed(str(error))
    except AccountError as error:
        return Rejected(str(error))
    except OwnerCallError as error:
        outcome = Ambiguous(str(error))
    except (KeyError, TypeError):
        log = AttemptLayout(folder).submitit / "submit.log"
        outcome = Ambiguous(files_of_attempt(folder, uid).last_line(log) or "the submission left no output of sbatch")
    if isinstance(outcome, Accepted) and not _ID.fullmatch(outcome.scheduler_id):
        outcome = Ambiguous("sbatch printed no job id")
    if isinstance(outcome, Ambiguous) and (ids := recorded_ids(folder, uid)):
        return Accepted(ids[0])
    return outcome


def recorded_ids(folder: Path, uid: int | None) -> list[str]:
    """The ids under which submitit stored this attempt's batch script: a second record of sbatch's output."""
    try:
        names = files_of_attempt(folder, uid).list_names(AttemptLayout(folder).submitit, _MAX_ENTRIES)
    except OSError:
        return []
    ids = (name.partition("_")[0] for name in names if name.endswith("_submission.sh"))
    return sorted((text for text in ids if _ID.fullmatch(text)), key=int)[:_MAX_RECORDED]


def recorded_answer(folder: Path, submission: str, uid: int | None) -> SubmitOutcome | None:
    """sbatch's answer to a submission, as the submitter left it in the attempt's folder; None if it left none."""
    path = AttemptLayout(folder).submitit / ANSWER_FILE
    try:
        record = json.loads(files_of_attempt(folder, uid).read(path, 0, _MAX_RECORD))
        if record["submission"] != submission:
            return None
        outcome = parse_sbatch_output(*_checked(record))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if isinstance(outcome, Ambiguous) or (isinstance(outcome, Accepted) and not _ID.fullmatch(outcome.scheduler_id)):
        return None
    return outcome


def _checked(result: Mapping[str, Any]) -> tuple[int, str, str]:
    """sbatch's exit status, output and error output.

    Raises:
        KeyError, TypeError: the answer lacks them, as after a timeout of sbatch.
    """
    status, texts = result["returncode"], (result["stdout"], result["stderr"])
    if not isinstance(status, int) or not all(isinstance(text, str) for text in texts):
        raise TypeError("the helper's answer is not valid")
    stdout, stderr = (_printable(text[:_MAX_OUTPUT]) for text in texts)
    return status, stdout, stderr


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
