"""Sends batches of spool records, and puts aside records that the service cannot store."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from trainyard.contract.wire.reports import MAX_POINTS, SpoolRecords
from trainyard.contract.wire.spool import RESTARTS_MARK, SpoolRecord
from worker.reporting.service_client import (
    TOO_LARGE,
    FailedError,
    ForeignAnswerError,
    RejectedError,
    ServiceClient,
    ServiceError,
    UnavailableError,
    UnknownRouteError,
)

log = logging.getLogger(__name__)

_ROUTES = {
    "metrics": "metrics",
    "events": "events",
    "checkpoint": "checkpoints",
    "parameters": "parameters",
    "media": "media",
}
_ORDERED = frozenset({"metrics", "media"})
"""Kinds of records of which the service keeps the value that was logged last."""
_ADDED_KINDS = frozenset({"media"})
"""Kinds of records whose route a service of an earlier version does not have."""
_TRIES = 8
"""Internal errors, or responses of a proxy, to one batch before it is divided; with the backoff about 15 seconds."""
_TRIES_OF_PART = 2
_MAX_RESENT = 1000


@dataclass
class ReportBatch:
    """Records that are sent in one request."""

    records: list[SpoolRecord]
    spool: int
    """The number of their spool."""

    @property
    def end(self) -> int:
        return self.records[-1].end

    def body(self) -> str:
        """Return the body of the request.

        Raises:
            RejectedError: The records cannot be merged.
        """
        try:
            if len(self.records) == 1:
                (record,) = self.records
                text = record.body_text.decode()
                return _with_source(text, self._source([_count_points(record)])) if record.kind in _ORDERED else text
            bodies = [json.loads(record.body_text) for record in self.records]
            progress = [body["progress"] for body in bodies if body["progress"]]
            points = [point for body in bodies for point in body["points"]]
            merged = {**bodies[-1], "points": points, "progress": progress[-1] if progress else None}
            source = self._source([len(body["points"]) for body in bodies])
            return _with_source(json.dumps(merged, separators=(",", ":")), source)
        except (ValueError, TypeError, LookupError) as error:
            raise RejectedError(f"the records are malformed: {error}") from None

    def halves(self) -> tuple["ReportBatch", "ReportBatch"]:
        middle = len(self.records) // 2
        return ReportBatch(self.records[:middle], self.spool), ReportBatch(self.records[middle:], self.spool)

    def _source(self, counts: list[int]) -> SpoolRecords:
        """Return the number of points by record. A record without points is left out, unless it is the only record."""
        records = tuple(
            (record.seq, n) for record, n in zip(self.records, counts, strict=True) if n or len(counts) == 1
        )
        return SpoolRecords(spool=self.spool, records=records)


def batch_records(records: list[SpoolRecord], spool: int) -> list[ReportBatch]:
    """Group adjacent metrics records into requests of at most MAX_POINTS points; other records are sent alone, as are
    those with which curves begin again.

    Args:
        spool: The number of their spool.
    """
    batches: list[ReportBatch] = []
    room = -1
    for record in records:
        can_join = record.kind == "metrics" and RESTARTS_MARK not in record.body_text
        points = _count_points(record)
        if can_join and points <= room:
            batches[-1].records.append(record)
            room -= points
        else:
            batches.append(ReportBatch([record], spool))
            room = MAX_POINTS - points if can_join else -1
    return batches


def _count_points(record: SpoolRecord) -> int:
    """Return the number of points or media without parsing the record: quotation marks of names are escaped in it."""
    return record.body_text.count(b'"key":')


def _with_source(body: str, source: SpoolRecords) -> str:
    """Add the source to the JSON of a batch."""
    return f'{body[:-1]},"source":{source.model_dump_json()}}}'


class BatchSender:
    """Sends each batch until the service has stored it, and divides a batch that the service cannot store.

    The sender waits for a service that is down. It divides a batch that is invalid, to which the service answers
    several times with an internal error, or which a proxy refuses several times while it passes other requests on. It
    divides until it finds the records that cause the problem. These are put aside, so that they do not hold up later
    reports, and are sent once more by `send_again`, unless the service found them invalid.
    """

    def __init__(
        self,
        client: ServiceClient,
        *,
        is_closing: Callable[[], bool],
        wait: Callable[[UnavailableError], bool],
        reset_wait: Callable[[], None],
        on_put_aside: Callable[[SpoolRecord, str], None],
        on_stored: Callable[[SpoolRecord], None],
    ) -> None:
        """
        Args:
            is_closing: Whether the run ends. After that no record is put aside for an internal error: the service
                itself reads the records that are not acknowledged, record by record.
            wait: Waits before a retry; returns False if there is no time for it.
            reset_wait: Called after each request that succeeds.
            on_put_aside: Called with each record that is put aside, and the reason.
            on_stored: Called with each record that was put aside and is stored after all.
        """
        self._client = client
        self._is_closing = is_closing
        self._wait = wait
        self._reset_wait = reset_wait
        self._on_put_aside = on_put_aside
        self._on_stored = on_stored
        self._failed: list[ReportBatch] = []

    def send(self, batch: ReportBatch, *, tries: int = _TRIES) -> bool:
        """Send the batch until it is stored or put aside; return False if the run ends first.

        Raises:
            RefusedError: The service refuses this worker.
        """
        failures = 0
        while True:
            try:
                self._client.post(_ROUTES[batch.records[0].kind], batch.body())
            except RejectedError as error:
                return self._divide(batch, error)
            except ForeignAnswerError as error:
                failures += 1
                if self._is_refused_by_proxy(batch, error, failures, tries):
                    return self._divide(batch, error)
                if not self._wait(error):
                    return False
            except UnavailableError as error:
                if isinstance(error, UnknownRouteError) and batch.records[0].kind in _ADDED_KINDS:
                    return self._divide(batch, error)
                failures += isinstance(error, FailedError)
                if failures >= tries and isinstance(error, FailedError):
                    return not self._is_closing() and self._divide(batch, error)
                if not self._wait(error):
                    return False
            else:
                self._reset_wait()
                return True

    def send_again(self, has_time: Callable[[], bool]) -> None:
        """Send the records once more that were put aside: the service may have been restarted, or the proxy changed."""
        failed, self._failed = self._failed, []
        for batch in failed:
            if not has_time():
                return
            try:
                self._client.post(_ROUTES[batch.records[0].kind], batch.body())
            except ServiceError as error:
                log.error("spool record %d could not be stored: %s", batch.records[0].seq, error)
            else:
                self._on_stored(batch.records[0])

    def _is_refused_by_proxy(self, batch: ReportBatch, error: ForeignAnswerError, failures: int, tries: int) -> bool:
        """Return whether a proxy refuses this batch alone. While it refuses everything, that is an outage."""
        if error.status == TOO_LARGE and len(batch.records) > 1:
            return True
        return failures % tries == 0 and not self._is_closing() and self._client.is_reached()

    def _divide(self, batch: ReportBatch, error: ServiceError) -> bool:
        if len(batch.records) > 1:
            return all(self.send(half, tries=_TRIES_OF_PART) for half in batch.halves())
        (record,) = batch.records
        log.error("the service cannot store spool record %d, which is put aside: %s", record.seq, error)
        if isinstance(error, UnavailableError) and len(self._failed) < _MAX_RESENT:
            self._failed.append(batch)
        self._on_put_aside(record, str(error))
        return True
