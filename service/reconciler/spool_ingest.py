"""Reading the reports that an ended attempt could not send: its spool and logs, before the job's final status.

The files are untrusted input, as in `run_dir`. A tick reads for a bounded time and the next tick continues, so that no
job delays the others.
"""

import errno
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import structlog
from pydantic import ValidationError

from service.attempts.service import AttemptService
from service.core.errors import UnavailableError
from service.core.untrusted_files import IrregularFileError, UntrustedFiles
from service.db.engine import Database
from service.logs.service import LogWriter
from service.metrics.ingest.writer import store_batch
from service.reconciler.repository import user_of_attempt
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.validation_messages import describe_error
from trainyard.contract.wire.media import MediaReport
from trainyard.contract.wire.reports import (
    MAX_LOG_CHUNK,
    CheckpointReport,
    EventsBatch,
    MetricsBatch,
    ParametersReport,
    SpoolRecords,
)
from trainyard.contract.wire.spool import (
    MAX_PUT_ASIDE,
    PUT_ASIDE_SUFFIX,
    SpoolRecord,
    parse_put_aside,
    parse_spool,
    spool_number,
)

JOB_SECONDS = 2.0
"""Time per tick for the reports of a single job."""
TICK_SECONDS = 10.0
"""Time that the reports of all jobs take of a tick. When it is used up, each further job has `MIN_SECONDS`."""
USER_SECONDS = 4.0
"""Time per tick for the reports of a user's jobs. When it is used up, each further job has `MIN_SECONDS`."""
MIN_SECONDS = 0.1
RETRY_SECONDS = 60.0
"""Time for which files are read again after an error of the filesystem that may pass."""
MAX_SPOOL_BYTES = 1 << 30
"""Maximum number of bytes read from the spool of an execution; reports after them are lost."""
_MAX_PUT_ASIDE_BYTES = 20 * MAX_PUT_ASIDE
_MAX_ENTRIES = 20_000
"""Maximum number of entries read from a folder. A job has a spool per execution and a log per rank."""

_SPOOL = re.compile(r"execution-[0-9]{6}(?:\.node-(?P<node>[0-9]{1,5}))?\.jsonl", re.ASCII)
_LOG = re.compile(r"(?:rank-[0-9]{1,6}|launch)\.log", re.ASCII)
_TRANSIENT = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.EINTR,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOTCONN,
        errno.EHOSTDOWN,
        errno.EREMOTEIO,
    }
)
"""Errors of a shared filesystem or of this process that may pass."""

log = structlog.get_logger("spool-ingest")


class SpoolIngests:
    """The unfinished ingests of ended attempts, which each tick continues."""

    def __init__(self, database: Database, log_limit: int, count: Callable[[str, int], None]):
        """
        Args:
            log_limit: Maximum number of bytes stored of a rank's log.
            count: Called with the kind and the number of the ingested items.
        """
        self._database = database
        self._log_limit = log_limit
        self._count = count
        self._unfinished: dict[str, SpoolIngest] = {}
        self._seconds = 0.0
        self._used: defaultdict[str, float] = defaultdict(float)
        """Seconds of this tick by user."""

    def start_tick(self, attempts: Collection[str]) -> None:
        """Begin a tick over these current attempts; drop the ingests of other attempts, except for late ingests."""
        self._unfinished = {key: ingest for key, ingest in self._unfinished.items() if ingest.late or key in attempts}
        self._seconds = TICK_SECONDS
        self._used.clear()

    def run(
        self,
        attempt_id: str,
        files: UntrustedFiles,
        folder: AttemptLayout,
        now: datetime,
        *,
        late: bool = False,
        from_start: bool = False,
    ) -> bool:
        """Ingest the reports of an attempt; return whether all are stored or put aside.

        Args:
            late: Whether the attempt has ended before.
            from_start: Whether the database may lack reports that a service acknowledged before a restore.

        Raises:
            UnavailableError: the database does not answer; the next call begins again, which changes nothing.
        """
        ingest = self._unfinished.pop(attempt_id, None)
        if ingest is None:
            sources = (self._database, attempt_id, files, folder)
            ingest = SpoolIngest(*sources, now, self._log_limit, self._count, late=late, from_start=from_start)
        with self._database.read() as session:
            user = user_of_attempt(session, attempt_id)
        started = time.monotonic()
        is_done = ingest.run(now, max(MIN_SECONDS, min(JOB_SECONDS, self._seconds, USER_SECONDS - self._used[user])))
        seconds = time.monotonic() - started
        self._seconds -= seconds
        self._used[user] += seconds
        if not is_done:
            self._unfinished[attempt_id] = ingest
        return is_done


@dataclass
class SpoolIngest:
    """Ingests the unsent reports of one attempt: the spool first, then the logs. Repeating it changes nothing."""

    database: Database
    attempt_id: str
    files: UntrustedFiles
    folder: AttemptLayout
    now: datetime
    log_limit: int
    count: Callable[[str, int], None]
    late: bool = False
    """Whether the attempt ended before, without an exit record: its processes lived on and wrote further reports. Its
    logs are not read again."""
    from_start: bool = False
    """Whether the database was restored since: the whole spool is read, and so are the logs."""
    rejected: int = 0
    """Reports and files that were put aside. They are not retried."""
    first_rejected: str = ""
    """The first of them and the reason."""

    def __post_init__(self) -> None:
        self._retry_until = self.now + timedelta(seconds=RETRY_SECONDS)
        self._steps = self._ingest()

    def run(self, now: datetime, seconds: float) -> bool:
        """Continue for about this time; return whether the ingest is complete.

        Raises:
            UnavailableError: the database does not answer; begin again with a new ingest.
        """
        self.now = now
        deadline = time.monotonic() + seconds
        return not any(must_wait or time.monotonic() >= deadline for must_wait in self._steps)

    def _ingest(self) -> Iterator[bool]:
        """Do the work in small steps. Yields after each step whether the next step must wait for the next tick."""
        spool = (self.folder.spool, _SPOOL, self._ingest_spool)
        logs = (self.folder.logs, _LOG, self._ingest_log)
        for folder, pattern, ingest in (spool,) if self.late and not self.from_start else (spool, logs):
            paths: list[Path] = []
            yield from self._isolate(partial(self._list_files, pattern, paths), folder)
            for path in paths:
                yield from self._isolate(ingest, path)
        if self.rejected:
            self.count("rejected", self.rejected)
            attempt = AttemptService(self.database, self.attempt_id, self.now, late=self.late)
            attempt.record_rejected(self.rejected, self.first_rejected)

    def _isolate(self, read: Callable[[Path], Iterator[bool]], path: Path) -> Iterator[bool]:
        """Retry a file as long as its error may pass, then put it aside: the job must end."""
        while True:
            try:
                yield from read(path)
            except (FileNotFoundError, IrregularFileError):
                return
            except UnavailableError:
                raise
            except Exception as error:
                is_transient = isinstance(error, OSError) and error.errno in _TRANSIENT
                if is_transient and self.now < self._retry_until:
                    log.warning("file cannot be read yet", path=str(path), error=str(error))
                    yield True
                    continue
                self._reject(path.name, error)
            return

    def _reject(self, item: str, error: Exception) -> None:
        if not self.rejected:
            self.first_rejected = f"{item}: {_first_line(error)}"
            # Invalid reports and unreadable files are the job's fault; anything else is a bug of the service.
            is_expected = isinstance(error, (ValueError, OSError))
            log.warning("report rejected", first=self.first_rejected, exc_info=None if is_expected else error)
        self.rejected += 1

    def _list_files(self, pattern: re.Pattern[str], paths: list[Path], folder: Path) -> Iterator[bool]:
        """Add the entries of a folder whose names match, in order."""
        paths += [folder / name for name in self.files.list_names(folder, _MAX_ENTRIES) if pattern.fullmatch(name)]
        yield False

    def _acknowledged_offset(self, path: Path) -> int:
        """Return the acknowledged offset like `read_acknowledged`, but treat the file as untrusted."""
        try:
            return max(0, int(self.files.read(path, 0, 20)))
        except (OSError, ValueError):
            return 0

    def _ingest_spool(self, path: Path) -> Iterator[bool]:
        offset = 0 if self.from_start else self._acknowledged_offset(path.with_suffix(".acknowledged"))
        spool = self.files.open_file(path)
        if offset > os.fstat(spool.fileno()).st_size:
            offset = 0
        for start in self._put_aside_before(offset, path):
            yield from self._ingest_put_aside(path, start)
        limit = offset + MAX_SPOOL_BYTES
        for record in parse_spool(spool, offset):
            if record.end > limit:
                raise ValueError(f"reports after the limit of {MAX_SPOOL_BYTES:,} bytes are not read")
            self._ingest_or_reject(path, record)
            yield False

    def _put_aside_before(self, offset: int, path: Path) -> list[int]:
        """Return the offsets of acknowledged records of a spool that the worker has put aside."""
        try:
            content = self.files.read(path.with_suffix(PUT_ASIDE_SUFFIX), 0, _MAX_PUT_ASIDE_BYTES)
        except OSError:
            return []
        return [start for start in parse_put_aside(content) if start < offset][:MAX_PUT_ASIDE]

    def _ingest_put_aside(self, path: Path, start: int) -> Iterator[bool]:
        """Ingest a record that the worker could not send, or that the service has refused before."""
        try:
            with self.files.open_file(path) as spool:
                record = next(parse_spool(spool, start), None)
        except ValueError as error:
            self._reject(f"{path.name}, byte {start}", error)
        else:
            if record is not None:
                self._ingest_or_reject(path, record)
        yield False

    def _ingest_or_reject(self, path: Path, record: SpoolRecord) -> None:
        try:
            self._ingest_record(path, record)
        except UnavailableError:
            raise
        except Exception as error:
            self._reject(f"{path.name}, record {record.seq}", error)

    def _ingest_log(self, path: Path) -> Iterator[bool]:
        rank = path.stem.removeprefix("rank-")
        # A process that outlives its attempt may go on writing; the end of the job does not wait for it.
        end = self.files.status(path).st_size
        logs = LogWriter(self.database, self.attempt_id, self.now, self.log_limit, self.count, late=self.late)
        # The tick waits for this, so the beginning of an oversized log is skipped instead of stored and dropped.
        offset = max(logs.append(rank, 0, b""), end - self.log_limit)
        while data := self.files.read(path, offset, max(0, min(MAX_LOG_CHUNK, end - offset))):
            offset = logs.append(rank, offset, data, allow_gap=True)
            yield False

    def _ingest_record(self, path: Path, record: SpoolRecord) -> None:
        attempt = AttemptService(self.database, self.attempt_id, self.now, self.count, late=self.late)
        match record.body():
            case MetricsBatch() as batch:
                batch = batch.model_copy(update=_source(path, record, len(batch.points)))
                store_batch(self.database, self.attempt_id, batch, self.now, late=self.late)
                self.count("points", len(batch.points))
            case EventsBatch() as events:
                attempt.events(events)
            case CheckpointReport() as checkpoint:
                attempt.checkpoint(checkpoint)
            case ParametersReport() as parameters:
                attempt.parameters(parameters)
            case MediaReport() as media:
                attempt.media(media.model_copy(update=_source(path, record, len(media.items))))


def _source(spool: Path, record: SpoolRecord, count: int) -> dict[str, SpoolRecords]:
    """Return the field that says where the points or items of a record are from."""
    match = _SPOOL.fullmatch(spool.name)
    number = spool_number(int(match["node"]) if match and match["node"] else None)
    return {"source": SpoolRecords(spool=number, records=((record.seq, count),))}


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, problem['loc']))}: {describe_error(problem)}"[:300]
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
