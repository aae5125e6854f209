"""The findings of the diagnostics, shared by the service and `trainyard doctor`."""

from typing import Literal

from pydantic import Field

from trainyard.contract.base import Resource, example


class Finding(Resource):
    """The result of a check."""

    name: str
    state: Literal["ok", "warning", "error"]
    message: str
    fix: str | None = None
    """How to fix it. None: nothing to fix."""


class DiagnosticsReport(Resource):
    """The results of the service's checks of its own installation."""

    model_config = example(
        findings=[
            {"name": "database", "state": "ok", "message": "answers"},
            {
                "name": "disk",
                "state": "error",
                "message": "only 2.5 GiB are free for runs",
                "fix": "delete jobs (trainyard usage shows whose), or move TRAINYARD_RUNS_DIR",
            },
        ]
    )

    object: Literal["diagnostics"] = "diagnostics"
    findings: list[Finding]


class Liveness(Resource):
    """The process responds."""

    status: Literal["ok"] = "ok"


class Readiness(Resource):
    """The state of every dependency."""

    status: Literal["ok", "degraded", "unavailable"]
    checks: dict[str, str] = Field(examples=[{"database": "ok", "runs_dir": "ok"}])
    """`ok` or the problem, by dependency."""
    notes: list[str] = Field(default_factory=list)


def ok_finding(name: str, message: str) -> Finding:
    """Return a finding with state `ok`."""
    return Finding(name=name, state="ok", message=message)


def warning_finding(name: str, message: str, fix: str) -> Finding:
    """Return a finding with state `warning`."""
    return Finding(name=name, state="warning", message=message, fix=fix)


def error_finding(name: str, message: str, fix: str) -> Finding:
    """Return a finding with state `error`."""
    return Finding(name=name, state="error", message=message, fix=fix)
