"""Identifiers: what people see, what schedulers see, what only machines see."""

import secrets
from datetime import datetime

from ulid import ULID


def new_job_id(now: datetime) -> str:
    """Sorts by time of creation."""
    return "job_" + str(ULID.from_datetime(now)).lower()


def first_job_id(moment: datetime, *, after: bool = False) -> str:
    """No job that was created then or later has a smaller one; with `after`, no job created until then a larger one."""
    milliseconds = min(max(0, int(moment.timestamp() * 1000) + after), 2**48 - 1)
    return "job_" + str(ULID(milliseconds.to_bytes(6, "big") + bytes(10))).lower()


def new_id(kind: str, now: datetime) -> str:
    """Sorts by time of creation."""
    return f"{kind}_{ULID.from_datetime(now)}".lower()


def new_checkpoint_id(now: datetime) -> str:
    return "ckpt_" + str(ULID.from_datetime(now)).lower()


def new_attempt_id() -> str:
    """Random: nobody can name an attempt that is not theirs."""
    return secrets.token_hex(8)


def scheduler_tag(instance: str, attempt_id: str) -> str:
    """The scheduler's name of an attempt. Nothing that a user wrote is in it."""
    return f"ty-{instance}-{attempt_id}"
