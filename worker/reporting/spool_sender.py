"""Sends the spool to the service: in order, in batches, until acknowledged, earlier executions first."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.wire.spool import (
    MAX_PUT_ASIDE,
    PUT_ASIDE_SUFFIX,
    SpoolCorruptError,
    SpoolRecord,
    format_put_aside,
    parse_spool,
    read_acknowledged,
    read_put_aside,
    spool_number,
)
from worker.reporting.batch_sender import BatchSender, batch_records
from worker.reporting.service_client import Backoff, RefusedError, ServiceClient, UnavailableError

log = logging.getLogger(__name__)

REPORTS_REJECTED = "reports_rejected"
"""Type of the event about records that were put aside."""
_READ_AHEAD = 256
_SPACING_SECONDS = 0.1
"""Pause between requests while more records wait."""
_COLLECTING_SECONDS = 1.0
"""Pause after the last waiting record. Short steps that log often share a request, since each request costs the CPU
that trains about a millisecond, for any size."""


@dataclass
class _Spool:
    path: Path
    acknowledged_path: Path
    offset: int = 0
    written: int = 0
    """The offset that the acknowledgement file holds."""
    own: bool = False
    put_aside: list[int] = field(default_factory=list)
    """The offsets of records that were put aside, as the file beside the spool lists them."""
    held: int | None = None
    """The offset of the first record that the list had no room for. Nothing from there on is acknowledged, so that the
    service reads it."""

    @property
    def acknowledged(self) -> int:
        return self.offset if self.held is None else min(self.offset, self.held)


class SpoolSender:
    """A thread that posts the attempt's spool files from the last acknowledged offset on."""

    def __init__(
        self,
        layout: AttemptLayout,
        execution: int,
        connect: Callable[[], ServiceClient],
        *,
        node: int | None = None,
        backoff: Backoff | None = None,
        acknowledge_seconds: float = 1.0,
    ) -> None:
        """
        Args:
            node: The node whose tracker spools are sent; default: the spools that the ranks write.
        """
        self._layout = layout
        self._execution = execution
        self._node = node
        self._connect = connect
        self._backoff = backoff or Backoff()
        self._acknowledge_seconds = acknowledge_seconds
        self._acknowledged_at = time.monotonic()
        self._acknowledge_failed = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._current: _Spool
        self._put_aside = 0
        self.on_put_aside: Callable[[int, str], None] = lambda _count, _reason: None
        """Called with the number of records that were put aside and the reason of the last, each time that the number
        is a power of two."""
        self._thread = threading.Thread(target=self._run, name="spool-sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self, timeout: float) -> None:
        """Send the rest for about `timeout` seconds at most, and write the acknowledged offset to disk."""
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout + 1.0)

    def _run(self) -> None:
        client = self._connect()
        sender = BatchSender(
            client,
            is_closing=self._closing.is_set,
            wait=self._wait,
            reset_wait=self._backoff.reset,
            on_put_aside=self._put_record_aside,
            on_stored=self._forget_put_aside,
        )
        try:
            for spool in self._spools():
                self._current = spool
                self._follow(sender, spool)
        except RefusedError as error:
            log.warning("the service refuses reports, and none are sent any more: %s", error)
        except Exception:
            log.exception("sending reports failed; they stay in the spool")
        finally:
            client.close()

    def _spools(self) -> list[_Spool]:
        if self._node is None:
            own, pattern = self._layout.spool_file(self._execution), "execution-??????.jsonl"
        else:
            own, pattern = (
                self._layout.tracker_spool(self._execution, self._node),
                f"execution-??????.node-{self._node}.jsonl",
            )
        earlier = sorted(path for path in self._layout.spool.glob(pattern) if path.name < own.name)
        spools = []
        for path in [*earlier, own]:
            acknowledged = path.with_suffix(".acknowledged")
            offset = read_acknowledged(acknowledged)
            spools.append(
                _Spool(path, acknowledged, offset, offset, path == own, put_aside=read_put_aside(_put_aside_file(path)))
            )
        return spools

    def _follow(self, sender: BatchSender, spool: _Spool) -> None:
        """Send a spool to its end. This execution's spool has no end before `close`."""
        try:
            while True:
                # Cleared before the check: `close` sets both, and its wake-up must not be lost. Checked before reading,
                # so that everything written before `close` is read.
                self._wake.clear()
                last = self._closing.is_set() or not spool.own
                records = _read_some(spool)
                for batch in batch_records(records, spool_number(self._node)):
                    if not sender.send(batch):
                        return
                    spool.offset = batch.end
                    self._acknowledge(spool, now=False)
                    self._closing.wait(_SPACING_SECONDS)
                if records and len(records) < _READ_AHEAD:
                    self._closing.wait(_COLLECTING_SECONDS - _SPACING_SECONDS)
                if not records:
                    if last:
                        sender.send_again(lambda: time.monotonic() < self._deadline)
                    self._acknowledge(spool, now=last)
                    if last:
                        return
                    self._wake.wait(self._acknowledge_seconds if spool.written < spool.acknowledged else None)
        finally:
            self._acknowledge(spool, now=True)

    def _wait(self, error: UnavailableError) -> bool:
        """Wait before a retry; return False if the time is up."""
        pause = self._backoff.pause(error.retry_after)
        if self._closing.wait(pause):
            # `close` ends pauses early; from then on they only keep the loop from spinning.
            time.sleep(min(0.1, pause))
        return time.monotonic() < self._deadline

    def _put_record_aside(self, record: SpoolRecord, reason: str) -> None:
        """List a record for the service, which reads it when the attempt ends, and count it."""
        spool = self._current
        if len(spool.put_aside) < MAX_PUT_ASIDE:
            spool.put_aside.append(record.start)
            self._write_put_aside(spool)
        elif spool.held is None:
            spool.held = record.start
        if record.kind == "events" and REPORTS_REJECTED.encode() in record.body_text:
            return  # an event about it would be put aside too
        self._put_aside += 1
        if self._put_aside.bit_count() == 1:
            self.on_put_aside(self._put_aside, reason)

    def _forget_put_aside(self, record: SpoolRecord) -> None:
        if record.start in self._current.put_aside:
            self._current.put_aside.remove(record.start)
            self._write_put_aside(self._current)

    def _write_put_aside(self, spool: _Spool) -> None:
        try:
            write_atomic(_put_aside_file(spool.path), format_put_aside(spool.put_aside))
        except OSError as error:
            log.warning("the list of reports that were put aside cannot be written: %s", error)
            spool.held = min(spool.put_aside, default=spool.held)

    def _acknowledge(self, spool: _Spool, *, now: bool) -> None:
        due = time.monotonic() - self._acknowledged_at >= self._acknowledge_seconds
        offset = spool.acknowledged
        if offset == spool.written or not (now or due):
            return
        self._acknowledged_at = time.monotonic()
        try:
            write_atomic(spool.acknowledged_path, str(offset))
        except OSError as error:
            # It only saves sending the records again; the service stores each once.
            if not self._acknowledge_failed:
                log.warning("the acknowledgement cannot be written, retrying: %s", error)
            self._acknowledge_failed = True
        else:
            self._acknowledge_failed = False
            spool.written = offset


def _put_aside_file(spool: Path) -> Path:
    return spool.with_suffix(PUT_ASIDE_SUFFIX)


def _read_some(spool: _Spool) -> list[SpoolRecord]:
    records: list[SpoolRecord] = []
    try:
        for record in parse_spool(spool.path, spool.offset):
            records.append(record)
            if len(records) == _READ_AHEAD:
                break
    except FileNotFoundError:
        pass
    except SpoolCorruptError as error:
        log.error("%s: %s; the records before it are sent", spool.path.name, error)
    return records
