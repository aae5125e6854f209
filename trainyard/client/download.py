"""Downloads: a file gets its final name when it is complete, and an interrupted download is continued."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

import httpx

from trainyard.client.errors import ConflictError, NotFoundError, ServerError, TargetExistsError, TrainyardError
from trainyard.client.retry import ATTEMPTS, backoff, is_transient
from trainyard.contract.kinds.tasks import LOOP_TASKS
from trainyard.contract.wire.files import FileResource
from trainyard.contract.wire.jobs import JobResource

Progress = Callable[[str, int, int], None]
"""Called with a file's path, the number of its bytes on disk, and its size."""

_MAX_NAME = 230
"""Bytes of a file's name, of 255 that filesystems allow, so that a suffix fits."""
MANIFEST = "manifest.json"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@contextmanager
def atomic_file(path: Path, *, overwrite: bool = False) -> Iterator[IO[bytes]]:
    """Open a temporary file that is renamed to `path` at the end of the block, or deleted on an error.

    Raises:
        TargetExistsError: a file exists at the path, and `overwrite` is false.
    """
    _require_absent(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=_hidden_path(path, ".").name, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(temporary).chmod(0o644)
        _require_absent(path, overwrite)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def no_export(job: JobResource, artifacts: Sequence[str] = ()) -> TrainyardError:
    """Return the error for a job without an export: not found if it succeeded, else a conflict with its status.

    Args:
        artifacts: The paths of the job's artifacts, which the error for a program of the user's names.
    """
    kind = NotFoundError if job.status == "succeeded" else ConflictError
    if job.spec.get("task") not in LOOP_TASKS:
        few = ", ".join(artifacts[:3]) + (", ..." if len(artifacts) > 3 else "")
        listing = f"it has {len(artifacts)} artifacts ({few}): trainyard artifacts {job.id} --all"
        where = f"what its program wrote is in {job.run_directory} on the nodes"
        return kind(
            f"job {job.id} has no export: it trained no model of Trainyard's; {listing if artifacts else where}"
        )
    return kind(
        f"job {job.id} has status {job.status} and has no export; download one of its checkpoints instead, or make a "
        f"model of one: trainyard export {job.id}"
    )


def no_progress(path: str, done: int, size: int) -> None:
    """Ignore the progress."""


class Download:
    """One file being downloaded.

    The received bytes are kept as `.<name>.part`, and the file's ETag as `.<name>.etag`, so that a later try continues
    the download if the file has not changed.
    """

    def __init__(
        self,
        file: FileResource,
        to: Path,
        digest: str | None,
        progress: Progress = no_progress,
        *,
        overwrite: bool = False,
    ) -> None:
        """`digest` is the SHA-256 that the file must have. None: not verified."""
        self.file = file
        self.path = to.joinpath(*safe_parts(file.path))
        self._partial_file = _hidden_path(self.path, ".part")
        self._etag_file = _hidden_path(self.path, ".etag")
        self._digest = digest
        self._progress = progress
        self._overwrite = overwrite
        self._failures = 0

    def start(self) -> Mapping[str, str]:
        """Return the headers that request the rest of the file, or all of it if it has changed since.

        Raises:
            TargetExistsError: there is another file at the path, which must not be replaced.
        """
        # Without a digest, a file of the same size may be the result of an earlier call: `finish` compares them.
        if self._digest is not None or not self._has_size:
            _require_absent(self.path, self._overwrite)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        done = self._partial_file.stat().st_size if self._partial_file.is_file() and self._etag_file.is_file() else 0
        if done > self.file.size_bytes:
            self._delete_partial()
            done = 0
        elif done and done == self.file.size_bytes:
            # An empty range is an error; requesting the last byte again also verifies that the file has not changed.
            done -= 1
            os.truncate(self._partial_file, done)
        self._progress(self.file.path, done, self.file.size_bytes)
        return {"Range": f"bytes={done}-", "If-Range": self._etag_file.read_text()} if done else {}

    @property
    def is_complete(self) -> bool:
        """Whether an earlier call has downloaded the file, as its digest proves."""
        return self._has_size and self._digest is not None and file_digest(self.path) == self._digest

    @property
    def _has_size(self) -> bool:
        """Whether there is a file of the right size at the path."""
        return self.path.is_file() and self.path.stat().st_size == self.file.size_bytes

    def receive(self, response: httpx.Response) -> IO[bytes]:
        """Open the file for the response's bytes; a response without a range restarts the download."""
        if response.status_code == 206:
            return self._partial_file.open("ab")
        self._delete_partial()
        if etag := response.headers.get("etag"):
            self._etag_file.write_text(etag)
        return self._partial_file.open("wb")

    def report_progress(self, file: IO[bytes]) -> None:
        """Report the bytes on disk."""
        self._progress(self.file.path, file.tell(), self.file.size_bytes)

    def finish(self) -> None:
        """Verify the file and give it its final name.

        Raises:
            ServerError: the size or the digest is wrong; the received bytes are deleted.
            TargetExistsError: there is a file with other content at the path, which must not be replaced.
        """
        size = self._partial_file.stat().st_size if self._partial_file.is_file() else 0
        problem = None
        if size != self.file.size_bytes:
            problem = f"has {size} bytes instead of {self.file.size_bytes}"
        elif self._digest is not None and file_digest(self._partial_file) != self._digest:
            problem = "has a different digest"
        if problem:
            self._delete_partial()
            raise ServerError(f"{self.file.path} is damaged: it {problem}; download it again")
        if not (self._has_size and file_digest(self.path) == file_digest(self._partial_file)):
            _require_absent(self.path, self._overwrite)
            os.replace(self._partial_file, self.path)
        self._delete_partial()

    def _delete_partial(self) -> None:
        self._partial_file.unlink(missing_ok=True)
        self._etag_file.unlink(missing_ok=True)

    def pause_after(self, error: TrainyardError) -> float:
        """Return the seconds until the next try, or raise the error if a retry cannot help."""
        self._failures += 1
        if not is_transient(error) or self._failures >= ATTEMPTS:
            raise error
        return backoff(self._failures)


def digests_of(manifest: bytes, expected: str) -> dict[str, str]:
    """Return the SHA-256 of each file that a checkpoint's manifest names, and of the manifest itself.

    Raises:
        ServerError: the manifest does not have the checkpoint's digest.
    """
    manifest_digest = hashlib.sha256(manifest).hexdigest()
    try:
        files = {name: str(file["sha256"]) for name, file in json.loads(manifest)["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        files = {}
    if f"sha256:{manifest_digest}" != expected or not files:
        raise ServerError(f"{MANIFEST} is damaged: it does not have the checkpoint's digest")
    return {**files, MANIFEST: manifest_digest}


def safe_parts(path: str) -> tuple[str, ...]:
    """Return the parts of a relative path. Raises ServerError: the path leads out of the folder."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise ServerError(f"the service sent the file path {path!r}, which leads out of the folder")
    return parts


def safe_name(id_: str) -> str:
    """Return an id, to be a part of a file's name.

    Raises:
        ServerError: it has characters that an id does not have, such as `/`.
    """
    if not _SAFE_NAME.fullmatch(id_):
        raise ServerError(f"the service sent the id {id_!r}, which cannot be a part of a file's name")
    return id_


def _require_absent(path: Path, overwrite: bool) -> None:
    if not overwrite and os.path.lexists(path):
        raise TargetExistsError(f"{str(path)!r} exists already and is not replaced")


def _hidden_path(path: Path, suffix: str) -> Path:
    """Return a path beside a file, with a shorter name if the filesystem could not store the long name."""
    name = path.name
    if len(os.fsencode(name)) > _MAX_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return path.with_name(f".{name}{suffix}")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
