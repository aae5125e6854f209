"""What an examination of an installation finds."""

from typing import Literal

from trainyard.contract.base import Resource


class Finding(Resource):
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "warning", "wrong"]
    message: str
    fix: str | None = None
    """What to do, where something is to be done."""


class Examination(Resource):
    """What the service sees of its own installation."""

    object: Literal["examination"] = "examination"
    findings: list[Finding]


def fine(name: str, message: str) -> Finding:
    return Finding(name=name, state="ok", message=message)


def worth(name: str, message: str, fix: str) -> Finding:
    """A warning."""
    return Finding(name=name, state="warning", message=message, fix=fix)


def bad(name: str, message: str, fix: str) -> Finding:
    return Finding(name=name, state="wrong", message=message, fix=fix)
