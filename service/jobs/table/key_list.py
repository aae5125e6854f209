"""The keys that queries of the runs table can use, for completion."""

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from service.db.engine import Database
from service.db.models import Job, JobValue, ValueKey
from service.db.visibility import present_reader
from service.jobs.table.keys import DESCRIBED, candidates
from service.jobs.table.values import Kind, Named
from trainyard.contract.job_query import parse_key
from trainyard.contract.wire.views import JobKeyResource

MAX_KEYS = 5000
_PREFIXES: Mapping[Kind, str] = {"metric": "metrics.", "parameter": "parameters.", "spec": "spec.", "tag": "tags."}
_ORDER: Sequence[Kind] = tuple(_PREFIXES)


def list_keys(database: Database) -> tuple[list[JobKeyResource], bool]:
    """Return the keys that a visible job has a value of, columns first, and whether some are left out."""
    columns = [JobKeyResource(key=name, kind="column", description=text) for name, text in DESCRIBED.items()]
    query = sa.select(ValueKey.kind, ValueKey.name).where(ValueKey.kind.in_(_ORDER))
    if present_reader() is not None:
        query = query.where(sa.exists().where(JobValue.key_pk == ValueKey.pk, JobValue.job_pk == Job.pk))
    with database.read() as session:
        rows = session.execute(query.limit(MAX_KEYS + 1)).all()
    ordered = sorted((_ORDER.index(kind), name) for kind, name in rows[:MAX_KEYS])
    known = {(_ORDER[order], name) for order, name in ordered}
    keys = [JobKeyResource(key=_key((_ORDER[order], name), known), kind=_ORDER[order]) for order, name in ordered]
    return columns + keys, len(rows) > MAX_KEYS


def _key(named: Named, known: Collection[Named]) -> str:
    """Return the text of a key: its name, with the kind before it if the name alone means another key."""
    kind, name = named
    meant = next((one for one in candidates(parse_key(name)) if one in known), None)
    return name if meant == named else f"{_PREFIXES[kind]}{name}"
