"""Runs side by side: the fields in which their specs differ, and the metrics that they have. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from service.web.formatting import NOTHING, number
from trainyard.contract.spec.spec_diff import differing_paths, flatten
from trainyard.contract.wire.jobs import JobResource

FIRST = ("eval/loss", "train/loss")
"""What is looked at where nobody says what."""
_LATER = ("perf/", "memory/", "comm/")
"""Metrics that are listed after those of the model."""


@dataclass(frozen=True)
class Run:
    """One line of the table."""

    job: JobResource
    cells: tuple[str, ...]
    """Values of the fields that differ."""
    last: str
    without: str
    """The address of the same page less this run."""


@dataclass(frozen=True)
class Comparison:
    """What the page shows."""

    fields: tuple[str, ...]
    keys: tuple[str, ...]
    """Every metric that a run has."""
    key: str
    """The one that is drawn."""
    runs: tuple[Run, ...]


def compare(jobs: Sequence[JobResource], key: str | None, *, sweep: str | None) -> Comparison:
    """Of a sweep, nothing can be left out."""
    specs = [flatten(job.spec) for job in jobs]
    fields = differing_paths(specs)
    keys = sorted({name for job in jobs for name in job.metrics}, key=lambda name: (name.startswith(_LATER), name))
    chosen = key if key in keys else next((name for name in FIRST if name in keys), keys[0] if keys else "")
    ids = [job.id for job in jobs]
    runs = [
        Run(
            job,
            tuple(cell(spec.get(path)) for path in fields),
            number(job.metrics.get(chosen)),
            "" if sweep else address([one for one in ids if one != job.id]),
        )
        for job, spec in zip(jobs, specs, strict=True)
    ]
    return Comparison(tuple(fields), tuple(keys), chosen, tuple(runs))


def address(ids: Sequence[str]) -> str:
    """Of the page that compares these."""
    return "/compare" + (f"?{urlencode([('job', one) for one in ids])}" if ids else "")


def cell(value: Any) -> str:
    """A field's value as it would be written in a spec."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    return number(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
