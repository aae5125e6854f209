"""Stores the artifacts of trackers below the job's folder of artifacts."""

import json
import os
import secrets
import threading
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from worker.trackers.answers import TrackerError, TrackerRequest
from worker.trackers.journal import Journal

MAX_BYTES = 1024**3
"""Bytes of all artifacts of one execution of the launcher."""
_CHUNK = 1024 * 1024
_MAX_JSON = 16 * 1024 * 1024


class ArtifactsFullError(TrackerError):
    """The artifacts would be larger than they may be. Nothing of the file was read."""

    def __init__(self, limit: int) -> None:
        message = f"the artifacts of a job may have at most {limit:,} bytes"
        super().__init__(413, "INVALID_PARAMETER_VALUE", message)


class ArtifactFolder:
    """A folder in which clients may create files, up to a size of all files together."""

    def __init__(self, root: Path, limit: int = MAX_BYTES) -> None:
        self._root = root
        self._room = limit
        self._limit = limit
        self._lock = threading.Lock()

    def store(self, name: str, body: BufferedIOBase, length: int) -> Path:
        """Write a file whose content is read from the body, and return its path.

        Raises:
            ArtifactsFullError: The artifacts would be too large.
            TrackerError: The name is invalid, or the client sent less than it announced.
            OSError: It could not be written.
        """
        path = self._path(name)
        self._reserve(length)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.parent / f".{secrets.token_hex(8)}.part"
        try:
            with part.open("xb") as file:
                _copy(body, file, length)
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            self._reserve(-length)
            raise
        return path

    def listed_path(self, name: str) -> str:
        """Return the path under which the service lists a file, relative to the folder of all artifacts.

        Raises:
            TrackerError: The name is invalid.
        """
        return self._path(name).relative_to(self._root.parent).as_posix()

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object of a small file.

        Raises:
            TrackerError: There is none of that name, it is too large, or it is none.
        """
        try:
            with self._path(name).open("rb") as file:
                document = json.loads(file.read(_MAX_JSON))
        except (FileNotFoundError, ValueError):
            document = None
        if not isinstance(document, dict):
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"there is no JSON file {name[:80]!a}")
        return document

    def find(self, name: str) -> Path:
        """Return the path of a file.

        Raises:
            TrackerError: There is none of that name.
        """
        path = self._path(name)
        if not path.is_file():
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"there is no artifact {name[:80]!a}")
        return path

    def entries(self, name: str) -> list[Path]:
        """Return what a folder contains; nothing if there is none of that name."""
        folder = self._path(name)
        return sorted(one for one in folder.iterdir() if one.name[0] != ".") if folder.is_dir() else []

    def has_folder(self, name: str) -> bool:
        return self._path(name).is_dir()

    def create_folder(self, name: str) -> None:
        self._path(name).mkdir(parents=True, exist_ok=True)

    def copy(self, source: Path, name: str) -> None:
        with source.open("rb") as file:
            self.store(name, file, os.fstat(file.fileno()).st_size)

    def _reserve(self, length: int) -> None:
        with self._lock:
            if length > self._room:
                raise ArtifactsFullError(self._limit)
            self._room -= length

    def _path(self, name: str) -> Path:
        parts = unquote(name).split("/")
        if len(name) > 1000 or any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise TrackerError(400, "INVALID_PARAMETER_VALUE", f"{name[:80]!a} is no name of an artifact")
        # Hidden files are no artifacts of a job.
        return self._root.joinpath(*(f"_{part}" if part.startswith(".") else part for part in parts))


def store_or_state(artifacts: ArtifactFolder, name: str, request: TrackerRequest, journal: Journal) -> bool:
    """Store the body of a request. What there is no room for is left out, which an event of the job states: an error
    would end the program. Return whether it is stored.

    Raises:
        TrackerError: The name is invalid, or the client sent less than it announced.
        OSError: It could not be written.
    """
    try:
        artifacts.store(name, request.body, request.length)
    except ArtifactsFullError as error:
        journal.state_once(request.reporter.execution, "artifacts", f"an artifact is left out: {error.message}")
        request.discard()
        return False
    return True


def _copy(body: BufferedIOBase, file: BinaryIO, length: int) -> None:
    while length:
        chunk = body.read(min(_CHUNK, length))
        if not chunk:
            raise TrackerError(400, "BAD_REQUEST", "the body ended early")
        file.write(chunk)
        length -= len(chunk)
