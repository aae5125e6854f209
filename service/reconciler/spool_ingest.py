"""What an attempt left in its folder and could not send: read once it is over, before its job gets a final status.

It is read as `traces` reads: as a stranger's.
"""

import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import structlog
from pydantic import ValidationError

from service.attempts.service import Ingest
from service.core.errors import ConflictError, InvalidRequestError
from service.db.engine import Database
from service.reconciler.run_dir import read_regular
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import MAX_LOG_CHUNK, CheckpointReport, EventsBatch, MetricsBatch
from trainyard.contract.wire.spool import SpoolCorruptError, SpoolRecord, parse_spool

RESTORED = ".restored"
"""A file in the folder of all runs; whoever restores an older database touches it."""

_RANK = re.compile(r"[0-9]{1,6}")

log = structlog.get_logger("drain")


@dataclass(frozen=True)
class Drain:
    """Takes in what is left of one attempt."""

    database: Database
    attempt_id: str
    folder: AttemptLayout
    now: datetime
    log_limit: int
    count: Callable[[str, int], None]
    """Told what was taken in: its kind and how much."""

    def run(self) -> None:
        """Spool first, then logs. Repeating it changes nothing.

        Raises:
            UnavailableError: the database does not answer; try again later.
        """
        ingest = Ingest(self.database, self.attempt_id, self.now, self.count)
        for spool in sorted(self.folder.spool.glob("execution-*.jsonl")):
            with _unless_closed(spool):
                self._spool(ingest, spool)
        for path in sorted(self.folder.logs.glob("*.log")):
            with _unless_closed(path):
                self._log(ingest, path)

    def _spool(self, ingest: Ingest, path: Path) -> None:
        if not _is_regular(path):
            return
        offset = 0 if _restored_since(self.folder) else _acknowledged(path.with_suffix(".acknowledged"))
        try:
            for record in parse_spool(path, offset):
                _take(ingest, record)
        except SpoolCorruptError as error:
            log.warning("spool is damaged", path=str(path), error=str(error))

    def _log(self, ingest: Ingest, path: Path) -> None:
        rank = path.stem.removeprefix("rank-")
        if not _is_regular(path):
            return
        if rank != "launch" and not _RANK.fullmatch(rank):
            return
        # The tick waits for this: of a log of many gigabytes the beginning is left out rather than stored and dropped.
        kept = path.lstat().st_size - self.log_limit
        offset = max(ingest.log(rank, 0, b"", self.log_limit), kept)
        for data in _pieces(path, offset):
            offset = ingest.log(rank, offset, data, self.log_limit, skip=True)


@contextmanager
def _unless_closed(path: Path) -> Iterator[None]:
    """What the job has closed to us, or has removed, is no reason to wait: reading it again would end the same way."""
    try:
        yield
    except (PermissionError, FileNotFoundError) as error:
        log.warning("cannot be read", path=str(path), error=str(error))


def _acknowledged(path: Path) -> int:
    """As `read_acknowledged`, of a stranger's file."""
    try:
        return max(0, int(read_regular(path, 0, 20)))
    except (OSError, ValueError):
        return 0


def _restored_since(folder: AttemptLayout) -> bool:
    """Whether the database that acknowledged what this attempt sent may be gone: then all of it is read again."""
    try:
        return (folder.root.parents[2] / RESTORED).stat().st_mtime >= folder.launch.stat().st_mtime
    except OSError:
        return False


def _take(ingest: Ingest, record: SpoolRecord) -> None:
    try:
        match record.body():
            case MetricsBatch() as metrics:
                ingest.metrics(metrics)
            case EventsBatch() as events:
                ingest.events(events)
            case CheckpointReport() as checkpoint:
                ingest.checkpoint(checkpoint)
    except (ValidationError, ConflictError, InvalidRequestError) as error:
        log.warning("a spooled record was refused", seq=record.seq, error=str(error))


def _pieces(path: Path, offset: int) -> Iterator[bytes]:
    while data := read_regular(path, offset, MAX_LOG_CHUNK):
        yield data
        offset += len(data)


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)
