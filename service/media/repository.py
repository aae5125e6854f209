"""All SQL about media."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from service.core.positions import SPOOL_SHIFT, positions
from service.db.engine import Database
from service.db.models import Execution, Job, Media
from service.db.paging import PageRequest, fetch_page
from trainyard.contract.base import MAX_SAFE_INT
from trainyard.contract.wire.media import MAX_JOB_MEDIA, MAX_MEDIA_KEYS, MediaKeyResource, MediaReport, MediaType

Row = dict[str, Any]

_IDENTITY = ("job_pk", "key", "step", "position", "execution")


@dataclass(frozen=True)
class MediaFilter:
    """Which media are listed. A key or a type that is None selects all."""

    key: str | None = None
    type: MediaType | None = None
    from_step: int = 0
    to_step: int = MAX_SAFE_INT

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        conditions: list[sa.ColumnElement[bool]] = [Media.step.between(self.from_step, self.to_step)]
        if self.key is not None:
            conditions.append(Media.key == self.key)
        if self.type is not None:
            conditions.append(Media.type == self.type)
        return conditions


class MediaRepository:
    """Media of jobs within a session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database

    def store(self, job_pk: int, report: MediaReport) -> int:
        """Add the items of a report, or replace items that were logged earlier; return the number without room."""
        source = report.source
        numbers = [None] * len(report.items) if source is None else positions(source.spool, source.records)
        items: dict[tuple[str, int, int], Row] = {}
        for one, number in zip(report.items, numbers, strict=True):
            of_report = {"job_pk": job_pk, "execution": report.execution, "spool_position": number}
            items[one.key, one.step, one.position] = {
                **of_report,
                **one.model_dump(exclude={"time"}),
                "time": one.time,
            }
        stored = self._with_room(job_pk, report.execution, items)
        if stored:
            statement = self._database.insert(Media).values(stored)
            changed = {name: statement.excluded[name] for name in stored[0] if name not in _IDENTITY}
            new, old = statement.excluded.spool_position, Media.spool_position
            # As for points: two spools have no common order, so that the first item stays.
            shift = sa.literal(SPOOL_SHIFT, sa.Integer())
            is_later = sa.and_(new > old, new.bitwise_rshift(shift) == old.bitwise_rshift(shift))
            update = statement.on_conflict_do_update(index_elements=_IDENTITY, set_=changed, where=is_later)
            self._session.execute(update)
        return len(items) - len(stored)

    def _with_room(self, job_pk: int, execution: int, items: Mapping[tuple[str, int, int], Row]) -> Sequence[Row]:
        """Return the items that replace stored items, and new items up to the limits of a job."""
        of_job = Media.job_pk == job_pk
        count = self._session.scalar(sa.select(sa.func.count()).select_from(Media).where(of_job)) or 0
        keys = set(self._session.scalars(sa.select(Media.key).where(of_job).distinct()))
        among = (Media.key.in_({key for key, _, _ in items}), Media.step.in_({step for _, step, _ in items}))
        known_items = sa.select(Media.key, Media.step, Media.position).where(
            of_job, Media.execution == execution, *among
        )
        known = {(key, step, position) for key, step, position in self._session.execute(known_items)}
        stored: list[Row] = []
        for identity, item in items.items():
            if identity not in known:
                if count >= MAX_JOB_MEDIA or (identity[0] not in keys and len(keys) >= MAX_MEDIA_KEYS):
                    continue
                count += 1
                keys.add(identity[0])
            stored.append(item)
        return stored

    def list_page(self, job: Job, selected: MediaFilter, page: PageRequest) -> tuple[list[Media], bool]:
        """Return a page of the visible media in the order of their arrival, and whether more follow."""
        query = sa.select(Media).where(*_visible(job), *selected.conditions())
        after = None if page.after is None else int(page.after)
        return fetch_page(self._session, query, Media.pk, page, after=after)

    def keys(self, job: Job) -> list[MediaKeyResource]:
        """Return the keys of the visible media by name."""
        numbers = (sa.func.max(Media.type), sa.func.count(), sa.func.min(Media.step), sa.func.max(Media.step))
        rows = self._session.execute(sa.select(Media.key, *numbers).where(*_visible(job)).group_by(Media.key))
        return [
            MediaKeyResource(key=key, type=kind, count=count, first_step=first, last_step=last)
            for key, kind, count, first, last in sorted(rows)
        ]

    def steps(self, job: Job, key: str) -> list[int]:
        """Return the steps of the visible media under a key, ascending."""
        query = sa.select(Media.step).where(*_visible(job), Media.key == key).distinct().order_by(Media.step)
        return list(self._session.scalars(query))


def have_media(database: Database, job_ids: Sequence[str]) -> bool:
    """Return whether any of the jobs has media, including those that a later execution replaced."""
    stored = sa.select(Media.pk).join(Job, Job.pk == Media.job_pk).where(Job.id.in_(job_ids))
    with database.read() as session:
        return bool(session.scalar(sa.select(sa.exists(stored))))


def has_media(database: Database, job_id: str) -> bool:
    """Return whether a job has media, including those that a later execution replaced."""
    return have_media(database, [job_id])


def _visible(job: Job) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions for media that no later execution has replaced, as for points."""
    later = aliased(Media)
    is_cut = sa.exists().where(
        Execution.job_pk == Media.job_pk, Execution.number > Media.execution, Execution.resumed_from_step < Media.step
    )
    is_replaced = sa.exists().where(
        later.job_pk == Media.job_pk,
        later.key == Media.key,
        later.step == Media.step,
        later.position == Media.position,
        later.execution > Media.execution,
    )
    return Media.job_pk == job.pk, Media.execution >= job.first_execution, ~is_cut, ~is_replaced
