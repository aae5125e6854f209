"""Batches like those before them: where a job's state need not be looked at first, Postgres stores a group in one trip.

Who reports has nearly always reported before, from the same execution and under the same names. Then what its job
gains can be said without knowing what it has, and the condition is put into the statement: a job for which it no
longer holds is left as it is, and its batches go the long way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from service.db.arrays import inside
from service.db.raw import RawTransaction
from service.metrics.ingest.decoding import PointBatch, Row
from service.metrics.ingest.latest import newest
from service.metrics.ingest.outcome import Stored
from service.metrics.ingest.repository import Known

_STORE = (
    "WITH told AS (SELECT t.*, a.job_pk FROM attempts a JOIN json_to_recordset(?::json) AS t(slot int, attempt text,"
    " execution bigint, resumed bigint, batches int, latest jsonb, progress jsonb) ON t.attempt = a.id"
    " AND t.execution = a.reported_execution AND t.resumed = a.resumed_from_step WHERE a.id = ANY(?::text[])),"
    " locked AS (SELECT pk FROM jobs WHERE pk IN (SELECT job_pk FROM told) ORDER BY pk FOR UPDATE),"
    " saved AS (UPDATE jobs SET sequence = jobs.sequence + t.batches, updated_at = ?, latest = jobs.latest || t.latest,"
    " progress = CASE WHEN jobs.attempt_id = t.attempt THEN COALESCE(t.progress, jobs.progress) ELSE jobs.progress END"
    " FROM locked JOIN told t ON t.job_pk = locked.pk WHERE jobs.pk = locked.pk"
    " RETURNING t.slot, jobs.pk, jobs.id, t.execution, jobs.sequence - t.batches AS before),"
    " fresh AS (INSERT INTO points (job_pk, execution, sequence, key_pk, step, value, special, time)"
    " SELECT s.pk, s.execution, s.before + p.nth, p.key_pk, p.step, p.value, p.special, p.time"
    " FROM unnest(?::int[], ?::int[], ?::bigint[], ?::bigint[], ?::float8[], ?::smallint[], ?::bigint[])"
    " AS p(slot, nth, key_pk, step, value, special, time) JOIN saved s ON s.slot = p.slot"
    " ON CONFLICT DO NOTHING RETURNING job_pk, sequence)"
    " SELECT s.slot, s.pk, s.id, s.before, f.sequence, f.points FROM saved s LEFT JOIN"
    " (SELECT job_pk, sequence, count(*) AS points FROM fresh GROUP BY job_pk, sequence) f ON f.job_pk = s.pk"
)


@dataclass(slots=True)
class Portion:
    """What one attempt reports in a group."""

    attempt_id: str
    execution: int
    resumed: int
    latest: dict[str, Any] = field(default_factory=dict)
    progress: dict[str, Any] | None = None
    places: list[int] = field(default_factory=list)
    """Of its batches, in the group."""


def portions(group: Sequence[tuple[str, PointBatch]], known: Known, now: datetime) -> list[Portion] | None:
    """A group by attempts; None where any of it is not known to be like what was stored before."""
    found: dict[str, Portion] = {}
    for place, (attempt_id, batch) in enumerate(group):
        if not known.covers(attempt_id, batch):
            return None
        portion = found.get(attempt_id)
        if portion is None:
            portion = found[attempt_id] = Portion(attempt_id, batch.execution, batch.resumed_from_step)
        portion.places.append(place)
        portion.latest.update(newest(batch.rows))
        if batch.progress is not None:
            portion.progress = {**batch.progress, "reported_at": now.isoformat()}
    if len({known.reported[attempt_id].job_pk for attempt_id in found}) < len(found):
        return None
    return list(found.values())


def store(
    transaction: RawTransaction,
    group: Sequence[tuple[str, PointBatch]],
    parts: Sequence[Portion],
    keys: dict[str, int],
    now: int,
) -> dict[int, Stored]:
    """Store a group on Postgres, in a transaction of its own; what became of each batch, by its place.

    Without an entry are the batches of jobs that are not as they were known.
    """
    told = [
        {
            "slot": slot,
            "attempt": part.attempt_id,
            "execution": part.execution,
            "resumed": part.resumed,
            "batches": len(part.places),
            "latest": part.latest,
            "progress": part.progress,
        }
        for slot, part in enumerate(parts)
    ]
    attempts = "{" + ",".join(part.attempt_id for part in parts) + "}"
    values = [msgspec.json.encode(told).decode(), attempts, now, *_columns(group, parts, keys)]
    found = transaction.alone((_STORE, values)).fetchall()
    counts = {(slot, sequence): count for slot, *_, sequence, count in found}
    stored: dict[int, Stored] = {}
    for slot, (pk, job_id, before) in {slot: job for slot, *job, _, _ in found}.items():
        transaction.changed_job_pks.add(pk)
        for sequence, place in enumerate(parts[slot].places, start=before + 1):
            fresh = counts.get((slot, sequence), 0)
            stored[place] = Stored(fresh, len(group[place][1].rows) - fresh, pk, job_id, sequence)
    return stored


def _columns(group: Sequence[tuple[str, PointBatch]], parts: Sequence[Portion], keys: dict[str, int]) -> list[str]:
    """Slot, place within the job's batches, and the rows' own columns, as array literals."""
    slots: list[int] = []
    nths: list[int] = []
    rows: list[Row] = []
    for slot, part in enumerate(parts):
        for nth, place in enumerate(part.places, start=1):
            batch = group[place][1]
            rows += batch.rows
            slots += [slot] * len(batch.rows)
            nths += [nth] * len(batch.rows)
    names, *rest = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    columns = (slots, nths, [keys[name] for name in names], *rest)
    return ["{" + inside(column) + "}" for column in columns]
