"""Stores the artifacts of trackers below the job's folder of artifacts."""

import json
import os
import secrets
import threading
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from worker.trackers.answers import TrackerError

MAX_BYTES = 1024**3
"""Bytes of all artifacts of one execution of the launcher."""
_CHUNK = 1024 * 1024
_MAX_JSON = 16 * 1024 * 1024


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
            TrackerError: The name is invalid, the artifacts are too large, or the client sent less than it announced.
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
                message = f"the artifacts of a job may have at most {self._limit:,} bytes"
                raise TrackerError(413, "INVALID_PARAMETER_VALUE", message)
            self._room -= length

    def _path(self, name: str) -> Path:
        parts = unquote(name).split("/")
        valid = all(part not in ("", ".", "..") and not part.startswith(".") and "\0" not in part for part in parts)
        if not valid or len(name) > 1000:
            raise TrackerError(400, "INVALID_PARAMETER_VALUE", f"{name[:80]!a} is no name of an artifact")
        return self._root.joinpath(*parts)


def _copy(body: BufferedIOBase, file: BinaryIO, length: int) -> None:
    while length:
        chunk = body.read(min(_CHUNK, length))
        if not chunk:
            raise TrackerError(400, "BAD_REQUEST", "the body ended early")
        file.write(chunk)
        length -= len(chunk)
