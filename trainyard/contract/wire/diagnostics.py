"""The findings of the diagnostics, shared by the service and `trainyard doctor`."""

from typing import Literal

from trainyard.contract.base import Resource


class Finding(Resource):
    """The result of one check."""

    name: str
    state: Literal["ok", "warning", "error"]
    message: str
    fix: str | None = None
    """How to fix it. None: nothing to fix."""


class DiagnosticsReport(Resource):
    """The results of the service's checks of its own installation."""

    object: Literal["diagnostics"] = "diagnostics"
    findings: list[Finding]


def ok_finding(name: str, message: str) -> Finding:
    """Return a finding with state `ok`."""
    return Finding(name=name, state="ok", message=message)


def warning_finding(name: str, message: str, fix: str) -> Finding:
    """Return a finding with state `warning`."""
    return Finding(name=name, state="warning", message=message, fix=fix)


def error_finding(name: str, message: str, fix: str) -> Finding:
    """Return a finding with state `error`."""
    return Finding(name=name, state="error", message=message, fix=fix)
