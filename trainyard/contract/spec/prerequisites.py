"""The field `after` of a spec: the jobs that must have ended before a job starts. Pure functions."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, StringConstraints

from trainyard.contract.problems import Problem
from trainyard.contract.validation_messages import PREREQUISITE_PATTERN

MAX_PREREQUISITES = 32
ENDED = ":ended"
"""Suffix of the id of a job that may end in any way."""

After = Annotated[
    tuple[Annotated[str, StringConstraints(pattern=PREREQUISITE_PATTERN)], ...], Field(max_length=MAX_PREREQUISITES)
]


class Prerequisite(NamedTuple):
    """A job that must have ended before its dependent starts."""

    job_id: str
    any_end: bool
    """Whether the job may have ended in any way; else it must have succeeded."""


def prerequisites_of(after: Sequence[str]) -> list[Prerequisite]:
    """Return the jobs that the field names, in its order."""
    return [Prerequisite(text.removesuffix(ENDED), text.endswith(ENDED)) for text in after]


def prerequisite_runs(after: Sequence[str], runs: Path) -> list[Path]:
    """Return the run directories of the jobs that the field names, in its order, below the folder of all runs."""
    return [runs / one.job_id for one in prerequisites_of(after)]


def repeated_prerequisites(after: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for every job that the field names again."""
    jobs = [one.job_id for one in prerequisites_of(after)]
    for number, job_id in enumerate(jobs):
        if job_id in jobs[:number]:
            yield Problem(param=f"after.{number}", message=f"names job {job_id} a second time; remove one of them")
