"""Reading the reports that an ended attempt could not send: its spool and logs, before the job's final status.

The files are untrusted input, as in `run_dir`.
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
from service.reconciler.run_dir import read_regular_file
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import MAX_LOG_CHUNK, CheckpointReport, EventsBatch, MetricsBatch
from trainyard.contract.wire.spool import SpoolCorruptError, SpoolRecord, parse_spool

RESTORE_MARKER = ".restored"
"""A marker file in the runs directory, to be touched after a restore of an older database."""

_RANK = re.compile(r"[0-9]{1,6}")

log = structlog.get_logger("spool-ingest")


@dataclass(frozen=True)
class SpoolIngest:
    """Ingests the unsent reports of one attempt."""

    database: Database
    attempt_id: str
    folder: AttemptLayout
    now: datetime
    log_limit: int
    """The most bytes that are kept of one rank's log."""
    count: Callable[[str, int], None]
    """Called with the kind and the amount of what was ingested."""

    def run(self) -> None:
        """Ingest the spool first, then the logs; repeating it changes nothing.

        Raises:
            UnavailableError: the database does not answer; try again later.
        """
        for spool in sorted(self.folder.spool.glob("execution-*.jsonl")):
            with _skip_inaccessible(spool):
                self._ingest_spool(spool)
        for path in sorted(self.folder.logs.glob("*.log")):
            with _skip_inaccessible(path):
                self._ingest_log(path)

    def _ingest_spool(self, path: Path) -> None:
        if not _is_regular(path):
            return
        offset = 0 if _restored_since(self.folder) else _acknowledged_offset(path.with_suffix(".acknowledged"))
        try:
            for record in parse_spool(path, offset):
                self._ingest_record(record)
        except SpoolCorruptError as error:
            log.warning("spool is damaged", path=str(path), error=str(error))

    def _ingest_log(self, path: Path) -> None:
        rank = path.stem.removeprefix("rank-")
        if not _is_regular(path) or (rank != "launch" and not _RANK.fullmatch(rank)):
            return
        # The tick waits for this, so the beginning of an oversized log is skipped instead of stored and dropped.
        first_offset = path.lstat().st_size - self.log_limit
        logs = LogWriter(self.database, self.attempt_id, self.now, self.log_limit, self.count)
        offset = max(logs.append(rank, 0, b""), first_offset)
        while data := read_regular_file(path, offset, MAX_LOG_CHUNK):
            offset = logs.append(rank, offset, data, allow_gap=True)

    def _ingest_record(self, record: SpoolRecord) -> None:
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
            log.warning("spooled record rejected", seq=record.seq, error=str(error))


@contextmanager
def _skip_inaccessible(path: Path) -> Iterator[None]:
    """Skip a file that the job has removed or made unreadable: a retry would fail the same way."""
    try:
        yield
    except (PermissionError, FileNotFoundError) as error:
        log.warning("file cannot be read", path=str(path), error=str(error))


def _acknowledged_offset(path: Path) -> int:
    """Return the acknowledged offset like `read_acknowledged`, but treat the file as untrusted."""
    try:
        return max(0, int(read_regular_file(path, 0, 20)))
    except (OSError, ValueError):
        return 0


def _restored_since(folder: AttemptLayout) -> bool:
    """Return whether the database was restored after the attempt's start, and may lack acknowledged reports."""
    try:
        return (folder.root.parents[2] / RESTORE_MARKER).stat().st_mtime >= folder.launch.stat().st_mtime
    except OSError:
        return False


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)
