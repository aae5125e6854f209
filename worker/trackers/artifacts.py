"""Stores the artifacts of trackers below the job's folder of artifacts."""

import json
import os
import re
import secrets
import threading
from collections.abc import Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from trainyard.contract.stored_name import with_digest
from worker.trackers.journal import Journal
from worker.trackers.tracker_requests import TrackerError, TrackerRequest

MAX_BYTES = 1024**3
"""Bytes of all artifacts of one execution of the launcher."""
_CHUNK = 1024 * 1024
_MAX_JSON = 16 * 1024 * 1024
_MAX_PART, _MAX_CUT = 200, 100
"""Maximum bytes of a path part that is stored unchanged, and characters that remain of a changed part."""
_NOT_IN_PART = frozenset("/\\%")
"""Paths are decoded like URL paths."""
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.\- ]")


class ArtifactsFullError(TrackerError):
    """The artifacts would exceed their limit. Nothing of the file was read."""

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

    def append_line(self, name: str, document: Mapping[str, Any]) -> None:
        """Append a line of JSON to a file.

        Raises:
            ArtifactsFullError: The artifacts would be too large.
            TrackerError: The name is invalid.
            OSError: It could not be written.
        """
        path, line = self._path(name), json.dumps(document).encode() + b"\n"
        self._reserve(len(line))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(line)

    def lines(self, name: str) -> list[bytes]:
        """Return the complete lines of a file; none if there is no such file.

        Raises:
            TrackerError: The name is invalid.
            OSError: It could not be read.
        """
        try:
            return self._path(name).read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object of a small file.

        Raises:
            TrackerError: The file does not exist, is too large, or is not a JSON object.
        """
        try:
            with self._path(name).open("rb") as file:
                document = json.loads(file.read(_MAX_JSON))
        except (FileNotFoundError, ValueError):
            document = None
        if not isinstance(document, dict):
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"there is no JSON file {name[:80]!r}")
        return document

    def find(self, name: str) -> Path:
        """Return the path of a file.

        Raises:
            TrackerError: The file does not exist.
        """
        path = self._path(name)
        if not path.is_file():
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"there is no artifact {name[:80]!r}")
        return path

    def entries(self, name: str) -> list[Path]:
        """Return the entries of a folder; an empty list if it does not exist."""
        folder = self._path(name)
        return sorted(one for one in folder.iterdir() if one.name[0] != ".") if folder.is_dir() else []

    def has_folder(self, name: str) -> bool:
        return self._path(name).is_dir()

    def create_folder(self, name: str) -> None:
        self._path(name).mkdir(parents=True, exist_ok=True)

    def reserve_folder(self, name: str) -> bool:
        """Make a folder; return False if it already exists.

        Raises:
            TrackerError: The name is invalid.
            OSError: It could not be made.
        """
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            return False
        return True

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
            raise TrackerError(400, "INVALID_PARAMETER_VALUE", f"{name[:80]!r} is no name of an artifact")
        return self._root.joinpath(*(f"_{part}" if _is_hidden(part) else part for part in parts))


def store_or_state(artifacts: ArtifactFolder, name: str, request: TrackerRequest, journal: Journal) -> bool:
    """Store the body of a request; return whether it is stored. Without room, it is left out and an event of the job
    states this: an error would end the program.

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


def file_part(name: str) -> str:
    """Return the file or folder name for a program's name. Different names get different file names."""
    if name.isprintable() and 0 < len(name.encode()) <= _MAX_PART and _NOT_IN_PART.isdisjoint(name) and name[0] != ".":
        return name
    return with_digest(_NOT_PLAIN.sub("_", name)[:_MAX_CUT].lstrip("."), name)


def logged_part(stored: str) -> str:
    """Return the part of a path as the client gave it."""
    return stored[1:] if stored.startswith("_") and _is_hidden(stored) else stored


def _is_hidden(part: str) -> bool:
    """Whether a path part needs, or already has, a leading `_`, since hidden files are not artifacts of a job."""
    return part.lstrip("_").startswith(".")


def _copy(body: BufferedIOBase, file: BinaryIO, length: int) -> None:
    while length:
        chunk = body.read(min(_CHUNK, length))
        if not chunk:
            raise TrackerError(400, "BAD_REQUEST", "the body ended early")
        file.write(chunk)
        length -= len(chunk)
