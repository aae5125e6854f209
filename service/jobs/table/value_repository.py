"""All SQL that writes the values of jobs and reads them by job."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.db.models import Job, JobValue, ValueKey, ValueState
from service.jobs.parameters import Reported
from service.jobs.table.values import Kind, Named, StoredValue, Values, reported_values, spec_values

# The tables and not the mapped classes: one statement, compiled once, runs with any number of rows.
_VALUE_KEYS: Any = ValueKey.__table__
_JOB_VALUES: Any = JobValue.__table__

_ROWS = 400
"""Maximum number of values in a statement; SQLite allows 32,766 parameters."""


class ValueRepository:
    """Values of jobs within a session."""

    def __init__(self, session: Session):
        self._session = session
        dialect = session.get_bind().dialect.name
        self._insert: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
        self._known: dict[Named, int] = session.info.setdefault("value_keys", {})
        """The numbers that this transaction has read: a sweep adds hundreds of jobs with the same keys."""

    def add_jobs(self, jobs: Sequence[Job]) -> None:
        """Insert the values of new jobs' specs and parameters."""
        by_job = {job.pk: spec_values(job.spec) | reported_values(Reported.from_json(job.parameters)) for job in jobs}
        numbers = self.add_keys({named for values in by_job.values() for named in values})
        rows = [
            {"job_pk": job_pk, "key_pk": numbers[named], "number": value.number, "text": value.text}
            for job_pk, values in by_job.items()
            for named, value in values.items()
        ]
        if rows:
            self._session.execute(sa.insert(_JOB_VALUES), rows)

    def replace(self, job_pk: int, old: Values, new: Values) -> None:
        """Change the values of a job from `old` to `new`: only rows that differ are written."""
        self.write(job_pk, {named: new.get(named) for named in {*old, *new} if old.get(named) != new.get(named)})

    def write(self, job_pk: int, changes: Mapping[Named, StoredValue | None]) -> None:
        """Set these values of a job; None removes a value."""
        numbers = self.add_keys({named for named, value in changes.items() if value is not None})
        removed = self.key_numbers([named for named, value in changes.items() if value is None])
        keys = sorted(removed.values())
        for start in range(0, len(keys), _ROWS):
            condition = (JobValue.job_pk == job_pk, JobValue.key_pk.in_(keys[start : start + _ROWS]))
            self._session.execute(sa.delete(JobValue).where(*condition))
        rows = [
            {"job_pk": job_pk, "key_pk": numbers[named], "number": value.number, "text": value.text}
            for named, value in changes.items()
            if value is not None
        ]
        if rows:
            statement = self._insert(_JOB_VALUES)
            changed = {"number": statement.excluded.number, "text": statement.excluded.text}
            conflict = statement.on_conflict_do_update(index_elements=["job_pk", "key_pk"], set_=changed)
            self._session.execute(conflict, rows)

    def key_numbers(self, names: Iterable[Named]) -> dict[Named, int]:
        """Return the number of each of these keys that is known."""
        requested = set(names)
        numbers = {named: self._known[named] for named in requested if named in self._known}
        by_kind: dict[Kind, list[str]] = {}
        for kind, name in sorted(requested - numbers.keys()):
            by_kind.setdefault(kind, []).append(name)
        for kind, of_kind in by_kind.items():
            for start in range(0, len(of_kind), _ROWS):
                query = sa.select(ValueKey.name, ValueKey.pk)
                query = query.where(ValueKey.kind == kind, ValueKey.name.in_(of_kind[start : start + _ROWS]))
                numbers.update({(kind, name): pk for name, pk in self._session.execute(query)})
        self._known.update(numbers)
        return numbers

    def add_keys(self, names: Collection[Named]) -> dict[Named, int]:
        """Return the numbers of keys; new keys get numbers, always in the same order to avoid deadlocks."""
        numbers = self.key_numbers(names)
        missing = sorted(named for named in names if named not in numbers)
        if missing:
            rows = [{"kind": kind, "name": name} for kind, name in missing]
            self._session.execute(self._insert(_VALUE_KEYS).on_conflict_do_nothing(), rows)
        return numbers | self.key_numbers(missing)

    def values_of(self, job_pk: int, kinds: Collection[Kind]) -> Values:
        """Return the values of a job of these kinds."""
        query = (
            sa.select(ValueKey.kind, ValueKey.name, JobValue.number, JobValue.text)
            .join(ValueKey, ValueKey.pk == JobValue.key_pk)
            .where(JobValue.job_pk == job_pk, ValueKey.kind.in_(kinds))
        )
        rows: Any = self._session.execute(query)
        return {(kind, name): StoredValue(number, text) for kind, name, number, text in rows}

    def read(self, job_pks: Sequence[int], key_pks: Collection[int]) -> dict[tuple[int, int], StoredValue]:
        """Return the values of jobs by (job, key)."""
        query = sa.select(JobValue.job_pk, JobValue.key_pk, JobValue.number, JobValue.text)
        query = query.where(JobValue.job_pk.in_(job_pks), JobValue.key_pk.in_(key_pks))
        return {(job, key): StoredValue(number, text) for job, key, number, text in self._session.execute(query)}

    def state(self, job_pk: int) -> ValueState | None:
        return self._session.get(ValueState, job_pk)
