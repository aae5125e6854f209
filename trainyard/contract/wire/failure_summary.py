"""The summary of a failure, which a person reads first."""

from typing import Any

from pydantic import Field

from trainyard.contract.base import Resource


class Frame(Resource):
    """One frame of a traceback."""

    file: str
    """Path of the file; relative to the uploaded code, if it is part of it."""
    line: int
    function: str
    source: str = ""
    """The source line, and below it the marks of the part that failed."""


class Fix(Resource):
    """A change of the spec that is likely to help."""

    fields: dict[str, Any]
    """New values by the field's path, as `--set` takes them."""
    note: str = ""


class FailureSummary(Resource):
    """The user's own part of a failure."""

    frame: Frame | None = None
    """The last frame of the traceback that is in the user's code."""
    is_traceback: bool = False
    """Whether `error.traceback` has a traceback; otherwise it is the end of the log."""
    last_lines: list[str] = Field(default_factory=list)
    """The last lines that the failed rank wrote, without tracebacks."""
    fixes: list[Fix] = Field(default_factory=list)
    """Fixes, most promising first."""
    repeats: bool = False
    """Whether a retry without a change would fail in the same way."""
