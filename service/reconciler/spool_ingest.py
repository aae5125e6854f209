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

from service.attempts.service import AttemptService
from service.core.errors import ConflictError, InvalidRequestError
from service.db.engine import Database
from service.logs.service import LogWriter
from service.metrics.ingest.writer import store_batch
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
        for spool in sorted(self.folder.spool.glob("execution-*.jsonl")):
            with _unless_closed(spool):
                self._spool(spool)
        for path in sorted(self.folder.logs.glob("*.log")):
            with _unless_closed(path):
                self._log(path)

    def _spool(self, path: Path) -> None:
        if not _is_regular(path):
            return
        offset = 0 if _restored_since(self.folder) else _acknowledged(path.with_suffix(".acknowledged"))
        try:
            for record in parse_spool(path, offset):
                self._store(record)
        except SpoolCorruptError as error:
            log.warning("spool is damaged", path=str(path), error=str(error))

    def _log(self, path: Path) -> None:
        rank = path.stem.removeprefix("rank-")
        if not _is_regular(path):
            return
        if rank != "launch" and not _RANK.fullmatch(rank):
            return
        # The tick waits for this: of a log of many gigabytes the beginning is left out rather than stored and dropped.
        kept = path.lstat().st_size - self.log_limit
        logs = LogWriter(self.database, self.attempt_id, self.now, self.log_limit, self.count)
        offset = max(logs.append(rank, 0, b""), kept)
        for data in _pieces(path, offset):
            offset = logs.append(rank, offset, data, allow_gap=True)

    def _store(self, record: SpoolRecord) -> None:
        attempt = AttemptService(self.database, self.attempt_id, self.now, self.count)
        try:
            match record.body():
                case MetricsBatch() as batch:
                    store_batch(self.database, self.attempt_id, batch, self.now)
                    self.count("points", len(batch.points))
                case EventsBatch() as events:
                    attempt.events(events)
                case CheckpointReport() as checkpoint:
                    attempt.checkpoint(checkpoint)
        except (ValidationError, ConflictError, InvalidRequestError) as error:
            log.warning("a spooled record was refused", seq=record.seq, error=str(error))


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


def _pieces(path: Path, offset: int) -> Iterator[bytes]:
    while data := read_regular(path, offset, MAX_LOG_CHUNK):
        yield data
        offset += len(data)


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)
