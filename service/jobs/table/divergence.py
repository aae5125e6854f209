"""Which jobs have diverged: by the values of their metrics, whatever their names, or by the verdict of the worker."""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from service.db.models import JobValue, ValueKey
from service.jobs.table.values import Kind
from trainyard.contract.loss_metric import SYSTEM_METRICS
from trainyard.contract.wire.reports import DIVERGED

_KINDS: Collection[Kind] = ("metric", "min", "max", "non_finite")
"""Their values are texts only if a value of the metric was NaN or infinite. Before `non_finite` was stored, the last,
smallest and largest value alone had that."""
_GRADIENTS = "grad"
"""In the names of metrics that are infinite in a sound run, whenever a lower loss scale is tried."""


def has_diverged(job: Any) -> sa.ColumnElement[bool]:
    """Return the condition on `jobs`, or an alias of it: never NULL."""
    value: Any = aliased(JobValue)
    key: Any = aliased(ValueKey)
    is_result = [sa.not_(key.name.startswith(one, autoescape=True)) for one in SYSTEM_METRICS]
    recorded = (
        sa.select(value.job_pk)
        .join(key, key.pk == value.key_pk)
        .where(value.text.is_not(None), key.kind.in_(_KINDS), sa.not_(key.name.icontains(_GRADIENTS)), *is_result)
    )
    verdict = sa.func.coalesce(job.failure["type"].as_string(), "") == DIVERGED
    return sa.or_(job.pk.in_(recorded), sa.and_(job.status == "failed", verdict))
