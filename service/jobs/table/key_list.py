"""The keys that queries of the runs table can use, for completion."""

import sqlalchemy as sa

from service.db.engine import Database
from service.db.models import Job, JobValue, ValueKey
from service.db.visibility import visible_owner
from service.jobs.table.keys import DESCRIBED
from trainyard.contract.wire.views import JobKeyResource

MAX_KEYS = 5000
_ORDER = ("metric", "parameter", "spec", "tag")


def list_keys(database: Database) -> tuple[list[JobKeyResource], bool]:
    """Return the keys that a visible job has a value of, columns first, and whether some are left out."""
    columns = [JobKeyResource(key=name, kind="column", description=text) for name, text in DESCRIBED.items()]
    query = sa.select(ValueKey.kind, ValueKey.name).where(ValueKey.kind.in_(_ORDER))
    if visible_owner() is not None:
        query = query.where(sa.exists().where(JobValue.key_pk == ValueKey.pk, JobValue.job_pk == Job.pk))
    with database.read() as session:
        rows = session.execute(query.limit(MAX_KEYS + 1)).all()
    ordered = sorted((_ORDER.index(kind), name) for kind, name in rows[:MAX_KEYS])
    keys = [JobKeyResource(key=_key(_ORDER[order], name), kind=_ORDER[order]) for order, name in ordered]
    return columns + keys, len(rows) > MAX_KEYS


def _key(kind: str, name: str) -> str:
    return f"tags.{name}" if kind == "tag" else name
