"""Identifiers of resources, attempts and scheduler entries."""

import re
import secrets
from datetime import datetime

from ulid import ULID

_JOB_ID = re.compile(r"job_[0-6][0-9a-hjkmnp-tv-z]{25}", re.ASCII)
"""`job_` and a ULID: Crockford's base 32, of a time that Python can represent."""


def new_job_id(now: datetime) -> str:
    """Return `job_<ULID>`; ids sort by time of creation."""
    return "job_" + str(ULID.from_datetime(now)).lower()


def first_job_id(created_at: datetime, *, after: bool = False) -> str:
    """Return the smallest id that a job created at this time can have; with `after`, the smallest id of a later job."""
    milliseconds = min(max(0, int(created_at.timestamp() * 1000) + after), 2**48 - 1)
    return "job_" + str(ULID(milliseconds.to_bytes(6, "big") + bytes(10))).lower()


def job_created_at(text: str) -> datetime | None:
    """Return the time of creation in a job's id; None if the text is no id of a job."""
    if not _JOB_ID.fullmatch(text):
        return None
    return ULID.from_str(text.removeprefix("job_").upper()).datetime


def new_id(kind: str, now: datetime) -> str:
    """Return `<kind>_<ULID>`; ids sort by time of creation."""
    return f"{kind}_{ULID.from_datetime(now)}".lower()


def new_checkpoint_id(now: datetime) -> str:
    return "ckpt_" + str(ULID.from_datetime(now)).lower()


def new_attempt_id() -> str:
    """Return 16 random hexadecimal digits, so that nobody can guess the id of another attempt."""
    return secrets.token_hex(8)


def scheduler_tag(instance: str, attempt_id: str) -> str:
    """Return the name under which the scheduler knows an attempt; it contains no user input."""
    return f"ty-{instance}-{attempt_id}"
