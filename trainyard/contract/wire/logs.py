"""Matching lines of a log, and positions in it."""

from typing import Literal

from pydantic import Field

from trainyard.contract.base import Resource, Timestamp, example

LogLevel = Literal["warning", "error"]
"""The severity of a line, recognised by the words that loggers and tracebacks use."""


class LogLine(Resource):
    """One line of a log."""

    offset: int
    """Offset of its first byte. It never changes, so that a link to the line stays valid."""
    text: str
    """The line without its end; a long line is cut."""
    level: LogLevel | None = None


class LogLines(Resource):
    """The matching lines of a part of a log. The whole log was searched once `has_more` is false."""

    model_config = example(data=[{"offset": 8192, "text": "WARNING: the learning rate is 0", "level": "warning"}])

    object: Literal["list"] = "list"
    data: list[LogLine]
    attempt: int | None = Field(default=None, examples=[1])
    """The attempt whose log was searched; none before the job's first attempt."""
    has_more: bool = Field(examples=[False])
    """Whether a part of the log was not searched: the response is full, or the time limit of the request is over."""
    next_offset: int = Field(examples=[10240])
    """The `offset` of the request that continues."""


class LogPosition(Resource):
    """The position in a log at a point in time."""

    object: Literal["log_position"] = "log_position"
    attempt: int
    rank: str = Field(examples=["0"])
    offset: int = Field(examples=[8192])
    """Offset of the first line that was received at this time or later; the end of the log if there is none."""
    time: Timestamp
    """The requested time; for a step, the time when it was done."""
