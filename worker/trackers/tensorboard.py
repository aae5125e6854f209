"""Follows the TensorBoard event files of a program: scalars become points, images, texts and histograms artifacts."""

import io
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from trainyard.contract.wire.media import MAX_MEDIA, MediaItem, MediaType
from worker.trackers.artifacts import ArtifactFolder, file_part
from worker.trackers.event_claims import EventClaims
from worker.trackers.event_folders import EventPath, event_paths
from worker.trackers.event_messages import Event, EventArtifact, EventHistogram, decode_event
from worker.trackers.event_records import DamagedRecordError, read_records
from worker.trackers.event_remainder import EventRemainder
from worker.trackers.event_runs import EventRuns, begun_at
from worker.trackers.journal import Journal, TrackedValue
from worker.trackers.media import histogram, media_item, state_step
from worker.trackers.tracker_requests import Reporter, TrackerError
from worker.trackers.wire_format import MalformedMessageError

log = logging.getLogger(__name__)

TRACKER = "tensorboard"
_POLL_SECONDS = 1.0
_WALK_SHARE = 0.05
"""The part of the time that is spent in walks of folders."""
_MAX_FILES = 1000
_BATCH = 1000
"""Values that are appended to the journal at once."""
_TYPES: Mapping[str, MediaType] = {".txt": "text", ".wav": "audio"}
"""Types of the files that are not images."""
_YEAR_2200 = 7_258_118_400.0


@dataclass
class _File:
    """A file that is followed."""

    path: Path
    root: Path
    rank: int = 0
    offset: int = 0
    size: int = -1
    """The size when the file was last read."""
    ended: bool = False
    prefix: str | None = None
    plugins: dict[str, str] = field(default_factory=dict)


@dataclass
class _Batch:
    """The contents of some records of a file."""

    end: int
    values: list[TrackedValue] = field(default_factory=list)
    media: list[MediaItem] = field(default_factory=list)


class TensorBoardFollower:
    """Reads the records that programs append to event files. Content that exists at construction is not read."""

    def __init__(
        self,
        journal: Journal,
        artifacts: ArtifactFolder,
        roots: Sequence[Path],
        claims: EventClaims,
        execution: int,
        *,
        remainder: EventRemainder | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            roots: Folders below which event files are expected.
            execution: The first execution of this launcher.
            remainder: Events that the launcher of an earlier attempt left unread.
        """
        self._journal = journal
        self._artifacts = artifacts
        self._roots = roots
        self._claims = claims
        self._execution = self._next_execution = execution
        self._remainder = remainder
        self._now = now
        self._past = {one.path: one.size for one in event_paths(roots)}
        self._files: dict[Path, _File] = {}
        self._runs = EventRuns()
        self._next_walk = 0.0
        self._stated: set[str] = set()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="event-files", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin(self, execution: int) -> None:
        """Assign records that are written from now on to another execution."""
        if execution != self._next_execution:
            self._next_execution = execution
            self._wake.set()

    def close(self, timeout: float) -> None:
        """Read the rest of the program's event files, for `timeout` seconds at most."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
            if self._thread.is_alive():
                log.warning("the event files of TensorBoard were not read to their ends within %.0f s", timeout)

    def poll(self, *, last: bool = False) -> None:
        """Read the new records.

        Args:
            last: The program has ended: every file is looked for, and claimed by this node if no other node has it.
        """
        following = self._next_execution
        restarted = following != self._execution
        if last or restarted or self._now() >= self._next_walk:
            self._walk(at_once=last)
        for file in list(self._files.values()):
            self._read(file, even_unchanged=last or restarted)
        # Before a restart every rank of the execution has ended, so all its records have just been read.
        self._execution = following

    def read_remainder(self) -> None:
        """Report the events that the launcher of an earlier attempt had not read when it was killed."""
        if self._remainder is None:
            return
        try:
            count = self._journal.add_unread(self._execution, TRACKER, self._remainder.values)
        except OSError as error:
            self._state_once("remainder", f"event files of the attempt before cannot be read or stored: {error}")
            return
        if count:
            log.info("%d points of TensorBoard are added that the attempt before had not read", count)

    def _run(self) -> None:
        self.read_remainder()
        closed = False
        while not closed:
            self._wake.wait(_POLL_SECONDS)
            self._wake.clear()
            closed = self._closed
            try:
                self.poll(last=closed)
            except Exception:
                self._state_once("poll", "the event files of TensorBoard cannot be followed", trace=True)

    def _walk(self, *, at_once: bool) -> None:
        """Add the files that have appeared, in the order in which their writers began."""
        began = self._now()
        new = [
            file
            for one in event_paths(self._roots)
            if one.path not in self._files and one.size > self._past.get(one.path, 0)
            if (file := self._take(one, at_once=at_once))
        ]
        self._next_walk = began + max(_POLL_SECONDS, (self._now() - began) / _WALK_SHARE)
        for file in sorted(new, key=lambda file: (begun_at(file.path, file.offset), len(file.path.parts), file.path)):
            if len(self._files) >= _MAX_FILES:
                self._state_once("files", f"only the first {_MAX_FILES} event files of TensorBoard are followed")
                return
            self._files[file.path] = file

    def _take(self, one: EventPath, *, at_once: bool) -> _File | None:
        try:
            own = self._claims.claim(one.path, at_once=at_once)
        except OSError as error:
            self._state_once("claim", f"event files of TensorBoard cannot be claimed: {error}")
            return None
        if own is None:
            return None
        offset = self._past.get(one.path, 0)
        return _File(one.path, one.root, self._claims.rank(one.path), offset, ended=not own)

    def _read(self, file: _File, *, even_unchanged: bool) -> None:
        """Report the file's new records. Records that cannot be stored now are read again next time."""
        if file.ended:
            return
        try:
            size = os.stat(file.path, follow_symlinks=False).st_size
            if size == file.size and not even_unchanged:
                return
            self._report(file)
            file.size = size
        except FileNotFoundError:
            file.size = -1
        except DamagedRecordError as error:
            file.ended = True
            log.warning("the event file %s is not read further: %s", file.path, error)
        except OSError as error:
            self._state_once("read", f"event files of TensorBoard cannot be read or stored: {error}")

    def _report(self, file: _File) -> None:
        batch = _Batch(file.offset)
        try:
            for record in read_records(file.path, file.offset):
                try:
                    event = decode_event(record.message, file.plugins)
                except MalformedMessageError:
                    event = Event()
                self._add(file, event, batch)
                batch.end = record.end
                if len(batch.values) >= _BATCH or len(batch.media) >= MAX_MEDIA:
                    self._store(file, batch)
                    batch = _Batch(record.end)
        finally:
            self._store(file, batch)

    def _store(self, file: _File, batch: _Batch) -> None:
        if batch.values:
            self._journal.log(self._execution, TRACKER, batch.values)
        if batch.media:
            self._journal.add_media(self._execution, batch.media)
        file.offset = batch.end

    def _add(self, file: _File, event: Event, batch: _Batch) -> None:
        if not (event.scalars or event.artifacts or event.histograms or event.parameters):
            return
        prefix = self._prefix(file)
        logged_at = datetime.fromtimestamp(event.time, UTC) if 0 < event.time < _YEAR_2200 else datetime.now(UTC)
        for tag, value in event.scalars:
            batch.values.append(TrackedValue(prefix + tag, value, event.step, logged_at, prefix))
        if event.parameters:
            self._journal.describe(self._execution, prefix=prefix, parameters=event.parameters)
        artifacts: list[EventArtifact | EventHistogram] = [*event.artifacts, *event.histograms]
        for artifact in artifacts:
            item = self._media(self._journal.media_key(prefix, artifact.tag), event.step, logged_at, artifact)
            batch.media += [] if item is None else [item]

    def _media(self, tag: str, step: int, time: datetime, artifact: EventArtifact | EventHistogram) -> MediaItem | None:
        """Store the file of an image, a sound or a text, and return the item that names it."""
        state_step(self._journal, self._execution, tag, step)
        if isinstance(artifact, EventHistogram):
            drawn = histogram(artifact.edges, artifact.counts)
            return None if drawn is None else media_item(tag, step, "histogram", time, histogram=drawn)
        folders = [file_part(part) for part in tag.split("/")]
        folders += [] if artifact.position is None else [str(artifact.position)]
        name = "/".join([*folders, f"{step}{artifact.extension}"])
        try:
            self._artifacts.store(name, io.BytesIO(artifact.data), len(artifact.data))
        except TrackerError as error:
            self._journal.state_once(self._execution, "artifacts", f"an artifact is left out: {error.message}")
        except OSError as error:
            self._state_once("artifacts", f"an artifact of TensorBoard cannot be stored: {error}")
        else:
            type_, position = _TYPES.get(artifact.extension, "image"), artifact.position or 0
            return media_item(tag, step, type_, time, path=self._artifacts.listed_path(name), position=position)
        return None

    def _prefix(self, file: _File) -> str:
        if file.prefix is None:
            written = {one.path.parent for one in self._files.values() if one.rank == file.rank}
            try:
                file.prefix = self._runs.prefix(Reporter(self._execution, file.rank), file.path.parent, written)
            except TrackerError as error:
                raise DamagedRecordError(error.message) from None
        return file.prefix

    def _state_once(self, kind: str, message: str, *, trace: bool = False) -> None:
        if kind not in self._stated:
            self._stated.add(kind)
            log.warning(message, exc_info=trace)
