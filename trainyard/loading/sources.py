"""Finds the folder of a model: a folder, or the export or a checkpoint of a job, downloaded once. Loads no torch."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainyard.client import Client
from trainyard.client.download import Progress, no_export, no_progress
from trainyard.client.references import FINE_TUNED, require_checkpoint
from trainyard.contract.kinds.tasks import LOOP_TASKS
from trainyard.contract.layout import CheckpointLayout
from trainyard.contract.wire.export import ExportRequest
from trainyard.contract.wire.exported import EXPORT_NOTE
from trainyard.contract.wire.files import CheckpointResource
from trainyard.contract.wire.jobs import JobResource
from trainyard.loading.cache import cached
from trainyard.loading.errors import LoadError
from trainyard.loading.export_folder import note_digest, parse_note

Convert = Callable[[ExportRequest], None]
"""Makes an export of a checkpoint. Raises LoadError, or an error of its own."""

_CONVERSION = 1
"""Increased when exports of checkpoints change, so that older exports in the cache are not used."""


@dataclass(frozen=True)
class Choice:
    """Which model of a job is wanted."""

    checkpoint: str | None = None
    """`best`, `latest` or a step; None: the job's export."""
    base: Path | None = None
    """The folder of the base model on this machine."""


def is_folder(source: str | Path) -> bool:
    """Return whether a source is a folder, not a job: a `Path`, or text that looks like a path."""
    if isinstance(source, str) and source.startswith(FINE_TUNED):
        return False
    return isinstance(source, Path) or source.startswith((".", "~", "/")) or "/" in source


def find_folder(source: str | Path) -> Path:
    """Return the folder that a source names. Raises LoadError: no such folder exists."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise LoadError(f"there is no folder {str(folder)!r}; name a folder with an export, a job or a model")
    return folder


def fetch(client: Client, job: JobResource, choice: Choice, convert: Convert, progress: Progress = no_progress) -> Path:
    """Return a local folder with the export of a job, or of its chosen checkpoint.

    Files on this machine are used in place. Others are downloaded into the cache.

    Raises:
        LoadError: No such model exists, or it was written by an earlier release.
        TrainyardError: A request failed.
    """
    if job.spec.get("task") not in LOOP_TASKS:
        raise LoadError(f"job {job.id} of task `{job.spec.get('task')}` has no model that Trainyard's loop has trained")
    if choice.checkpoint is None:
        return fetch_export(client, job, progress=progress)
    checkpoint = require_checkpoint(client.checkpoints(job.id), choice.checkpoint, job.id)
    return fetch_checkpoint(client, job, checkpoint, choice.base, convert, progress)


def fetch_export(
    client: Client, job: JobResource, *, expected: str | None = None, progress: Progress = no_progress
) -> Path:
    """Return a local folder with the export of a job.

    Args:
        expected: The digest that it must have.

    Raises:
        LoadError: It has another digest, or was written by an earlier release.
    """
    listed = {file.path for file in client.files(job.id)}
    if not listed:
        raise no_export(job)
    content = client.read_file(job.id, EXPORT_NOTE) if EXPORT_NOTE in listed else b"{}"
    digest = note_digest(content)
    if expected is not None and digest != expected:
        raise LoadError(f"the export of job {job.id} is not the registered one: it was changed since")
    note = parse_note(content, f"job {job.id}") if EXPORT_NOTE in listed else None
    if note is None or not note.files:
        raise LoadError(
            f"the export of job {job.id} was written by an earlier release, without digests; choose one of its "
            "checkpoints, such as `latest`, or download the export and load the folder"
        )
    local = Path(job.run_directory) / "export"
    if _has_content(local / EXPORT_NOTE, content):
        return local

    def download(folder: Path) -> None:
        digests = {name: file.sha256 for name, file in note.files.items()}
        digests[EXPORT_NOTE] = digest.removeprefix("sha256:")
        client.download(job.id, folder, digests=digests, progress=progress)

    return cached(digest.removeprefix("sha256:"), download)


def fetch_checkpoint(
    client: Client,
    job: JobResource,
    checkpoint: CheckpointResource,
    base: Path | None,
    convert: Convert,
    progress: Progress = no_progress,
) -> Path:
    """Return a local folder with an export of a checkpoint, which is made on this machine."""
    identity = f"{_CONVERSION} {checkpoint.digest} {base.absolute() if base else ''}"

    def make(folder: Path) -> None:
        source, downloaded = Path(checkpoint.path), folder.with_name(f"{folder.name}-source")
        if not _has_digest(CheckpointLayout(source).manifest, checkpoint.digest):
            source = client.download(job.id, downloaded, checkpoint=checkpoint, progress=progress)
        for left in folder.iterdir():
            left.unlink()
        convert(
            ExportRequest(
                job_id=job.id,
                step=checkpoint.step,
                spec=job.spec,
                checkpoint=str(source.absolute()),
                output=str(folder),
                base=str(base.absolute()) if base else None,
            )
        )
        shutil.rmtree(downloaded, ignore_errors=True)

    return cached(f"step-{checkpoint.step}-{hashlib.sha256(identity.encode()).hexdigest()}", make)


def _has_content(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def _has_digest(path: Path, digest: str) -> bool:
    try:
        return note_digest(path.read_bytes()) == digest
    except OSError:
        return False
