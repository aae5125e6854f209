"""Reading the reports that an ended attempt could not send: its spool and logs, before the job's final status.

The files are untrusted input, as in `run_dir`.
"""

import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog
from pydantic import ValidationError

from service.attempts.service import AttemptService
from service.core.errors import UnavailableError
from service.db.engine import Database
from service.logs.service import LogWriter
from service.metrics.ingest.writer import store_batch
from service.reconciler.run_dir import open_regular_file, read_regular_file
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.validation_messages import describe_error
from trainyard.contract.wire.reports import MAX_LOG_CHUNK, CheckpointReport, EventsBatch, MetricsBatch
from trainyard.contract.wire.spool import SpoolRecord, parse_spool

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
    late: bool = False
    """Whether the attempt ended before, without an exit record: its processes lived on and wrote further reports."""
    rejected: list[str] = field(default_factory=list)
    """Why each rejected report was put aside. A rejected report is not retried."""

    def run(self) -> None:
        """Ingest the spool first, then the logs; repeating it changes nothing.

        Raises:
            UnavailableError: the database does not answer; try again later.
        """
        for spool in sorted(self.folder.spool.glob("execution-*.jsonl")):
            with self._isolate_file(spool):
                self._ingest_spool(spool)
        for path in [] if self.late else sorted(self.folder.logs.glob("*.log")):
            with self._isolate_file(path):
                self._ingest_log(path)
        if self.rejected:
            self.count("rejected", len(self.rejected))
            attempt = AttemptService(self.database, self.attempt_id, self.now, late=self.late)
            attempt.record_rejected(len(self.rejected), self.rejected[0])

    @contextmanager
    def _isolate_file(self, path: Path) -> Iterator[None]:
        """Put a file aside that cannot be ingested: the job must end, and a retry would fail in the same way."""
        try:
            yield
        except (PermissionError, FileNotFoundError) as error:
            log.warning("file cannot be read", path=str(path), error=str(error))
        except (UnavailableError, OSError):
            raise
        except Exception as error:
            self._reject(path.name, error)

    def _reject(self, item: str, error: Exception) -> None:
        if not self.rejected:
            log.warning("report rejected", item=item, exc_info=error)
        self.rejected.append(f"{item}: {_first_line(error)}")

    def _ingest_spool(self, path: Path) -> None:
        if not _is_regular(path):
            return
        offset = 0 if _restored_since(self.folder) else _acknowledged_offset(path.with_suffix(".acknowledged"))
        if offset > path.lstat().st_size:
            offset = 0
        for record in parse_spool(open_regular_file(path), offset):
            try:
                self._ingest_record(record)
            except (UnavailableError, OSError):
                raise
            except Exception as error:
                self._reject(f"{path.name}, record {record.seq}", error)

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
        attempt = AttemptService(self.database, self.attempt_id, self.now, self.count, late=self.late)
        match record.body():
            case MetricsBatch() as batch:
                store_batch(self.database, self.attempt_id, batch, self.now, late=self.late)
                self.count("points", len(batch.points))
            case EventsBatch() as events:
                attempt.events(events)
            case CheckpointReport() as checkpoint:
                attempt.checkpoint(checkpoint)


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, problem['loc']))}: {describe_error(problem)}"[:300]
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


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
