"""Advice about a running job, from its metrics. Pure functions."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.problems import SpecError
from trainyard.contract.proposals import accepted_fixes, start_of_fork
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.stored_name import SYSTEM_PREFIXES
from trainyard.contract.wire.jobs import Advice, Fix
from trainyard.contract.wire.reports import IDLE_GPU_PERCENT, IDLE_GPU_SECONDS, IDLE_GPUS

SLOW_DATA_SHARE = 0.2
"""Minimum share of a step spent waiting for data that is worth a change."""
_MAX_LOADERS = 8


def advise(
    spec: Mapping[str, Any], latest: Mapping[str, Any], *, job_id: str = "", step: int | None = None
) -> list[Advice]:
    """Return advice, the costliest first.

    Args:
        latest: The latest value of each metric; values that are not finite are texts.
        job_id: The job.
        step: The step of its newest checkpoint, from which a copy with the change starts.
    """
    return [_with_fix(one, spec, job_id, step) for one in (*_idle_gpus(spec, latest), *_slow_data(spec, latest))]


def _with_fix(advice: Advice, spec: Mapping[str, Any], job_id: str, step: int | None) -> Advice:
    """Return the advice with its change as a difference, or without the change if the spec would be refused."""
    if advice.fix is None:
        return advice
    try:
        source = parse_stored_spec(spec)
    except SpecError:
        return advice.model_copy(update={"fix": None})
    fixes = accepted_fixes(source, [advice.fix], start_of_fork(source, job_id, step))
    return advice.model_copy(update={"fix": next(iter(fixes), None)})


def _idle_gpus(spec: Mapping[str, Any], latest: Mapping[str, Any]) -> Iterator[Advice]:
    counts = (
        _number(value)
        for name, value in latest.items()
        if name.startswith(SYSTEM_PREFIXES) and name.endswith(f"/{IDLE_GPUS}")
    )
    total = _count(spec.get("gpus"))
    idle = min(total, int(sum(count for count in counts if count is not None and count > 0)))
    kind = task_kind(spec.get("task"))
    if idle and (kind.in_loop or kind.runs_program):
        # A program has profilers of its own.
        field, source = ("profile", "the log or a `profile`") if kind.in_loop else ("argv", "the log")
        which = f"{idle} of {total} GPUs are" if total > 1 else "The GPU is"
        message = (
            f"{which} allocated but idle: below {IDLE_GPU_PERCENT:g} % for {IDLE_GPU_SECONDS / 60:g} min. "
            + ("Lower `gpus`, or " if total > 1 else "")
            + f"{'f' if total > 1 else 'F'}ind in {source} what the ranks wait for."
        )
        fix = Fix(fields={"gpus": total - idle}, note="those that are not idle") if idle < total else None
        yield Advice(kind="idle_gpus", message=message, field="gpus" if total > 1 else field, fix=fix)


def _slow_data(spec: Mapping[str, Any], latest: Mapping[str, Any]) -> Iterator[Advice]:
    if not task_kind(spec.get("task")).in_loop:
        return
    data, step = (_number(latest.get(f"perf/{name}_seconds")) for name in ("data", "step"))
    if data is None or step is None or step <= 0 or not SLOW_DATA_SHARE <= data / step <= 1:
        return
    head = f"The data loader takes {100 * data / step:.0f} % of a step."
    if not task_kind(spec.get("task")).has_own_code:
        # Examples of the other tasks are in memory, and `batch.loaders` has no effect.
        yield Advice(kind="slow_data", message=f"{head} A `profile` of some steps shows where.", field="profile")
        return
    batch = spec.get("batch")
    loaders = _count(batch.get("loaders") if isinstance(batch, Mapping) else 0)
    fix = None
    if loaders < _MAX_LOADERS:
        more = max(2, min(_MAX_LOADERS, 2 * loaders))
        fix = Fix(fields={"batch.loaders": more})
        message = f"{head} Raise `batch.loaders`, now {loaders}, to {more}."
    else:
        message = f"{head} `batch.loaders` is {loaders}: decode less for each example, or store decoded ones."
    yield Advice(kind="slow_data", message=message, field="batch.loaders", fix=fix)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
