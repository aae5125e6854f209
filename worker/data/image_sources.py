"""The images that a section names, with their classes: files in a folder for each class, and rows of Parquet files."""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from trainyard.contract.allowed_roots import AllowedRoots, OutsideRootsError
from trainyard.contract.formats.labels import MAX_LABEL
from trainyard.contract.formats.records import is_encodable
from trainyard.contract.spec.text_sources import FileSource, Paths, listed_paths
from worker.core.errors import RefusedError
from worker.data.arrow_tables import class_names
from worker.data.data_files import DataFile, find_files, is_saved_dataset, opened_path, state_of
from worker.data.image_decoding import MAX_BYTES, BadImageError
from worker.data.records import numbered_records

MAX_IMAGES = 5_000_000
_SETTLED_SECONDS = 5.0
"""A file that changed more recently may change again with the same timestamp."""


@dataclass(frozen=True)
class ImageRecord:
    """An image that is not read yet."""

    origin: str
    """The file, or the file and the row, for messages."""
    read: Callable[[], tuple[bytes, str]]
    """Returns the encoded image and the name of its class. Raises BadImageError; RefusedError if the file cannot be
    read at all."""


@dataclass(frozen=True)
class ImageFolder:
    """A folder with a subfolder for each class."""

    field: str
    path: str
    files: tuple[tuple[str, str], ...]
    """Class and name of each file, in this order."""
    roots: AllowedRoots

    def records(self) -> Iterator[ImageRecord]:
        """Yield the images in their order."""
        for label, name in self.files:
            path = os.path.join(self.path, label, name)
            yield ImageRecord(path, partial(self._read, path, label))

    def states(self, on_progress: Callable[[], None]) -> Iterator[tuple[Any, ...]]:
        """Yield the state of each file, to detect a changed file."""
        for label, name in self.files:
            on_progress()
            with opened_path(self.field, os.path.join(self.path, label, name), self.roots) as handle:
                state = state_of(handle)
            yield label, name, state.device, state.inode, state.size, state.modified_ns, state.changed_ns

    def _read(self, path: str, label: str) -> tuple[bytes, str]:
        with opened_path(self.field, path, self.roots) as handle:
            return handle.read(MAX_BYTES + 1), _checked(label)


@dataclass(frozen=True)
class ImageTable:
    """A Parquet file, or an Arrow file of a data set."""

    file: DataFile
    image: str
    label: str
    """The names of the columns."""

    def records(self) -> Iterator[ImageRecord]:
        """Yield the rows in their order."""
        names = class_names(self.file, self.label)
        for position, row in numbered_records([self.file], frozenset((self.image, self.label))):
            yield ImageRecord(str(position), partial(self._read, row, names))

    def states(self, on_progress: Callable[[], None]) -> Iterator[tuple[Any, ...]]:
        """Yield the state of the file, to detect a change."""
        on_progress()
        state = self.file.state
        yield state.device, state.inode, state.size, state.modified_ns, state.changed_ns

    def _read(self, row: Mapping[str, Any], names: tuple[str, ...]) -> tuple[bytes, str]:
        return self._image(row), self._label(row, names)

    def _image(self, row: Mapping[str, Any]) -> bytes:
        if self.image not in row:
            raise BadImageError(f"has no column `{self.image}`, which data.columns can name")
        value = row[self.image]
        if isinstance(value, Mapping):
            if value.get("bytes") is None and value.get("path"):
                raise BadImageError(
                    f"has only the path of an image in column `{self.image}`; save_to_disk of `datasets` stores the "
                    "images themselves"
                )
            value = value.get("bytes")
        if not isinstance(value, bytes):
            raise BadImageError(f"has no bytes of an image in column `{self.image}`")
        return value

    def _label(self, row: Mapping[str, Any], names: tuple[str, ...]) -> str:
        if self.label not in row:
            raise BadImageError(f"has no column `{self.label}`, which data.columns can name")
        value = row[self.label]
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise BadImageError(f"has no string and no whole number in column `{self.label}`")
        if names and isinstance(value, int):
            if not 0 <= value < len(names):
                raise BadImageError(f"has a number in column `{self.label}` that is none of a class")
            value = names[value]
        return _checked(str(value))


ImageSource = ImageFolder | ImageTable


def find_images(field: str, paths: Paths, columns: Mapping[str, str], roots: AllowedRoots) -> list[ImageSource]:
    """Return the folders, Parquet files and saved data sets of a field, in their order.

    Raises:
        RefusedError: A path names none of these, cannot be read, or is outside of the roots.
    """
    sources: list[ImageSource] = []
    for path in listed_paths(paths):
        is_saved = is_saved_dataset(path)
        if os.path.isdir(path) and not is_saved:
            sources.append(_folder(field, path, roots))
            continue
        for file in find_files(field, FileSource(source="dataset" if is_saved else "parquet", path=path), roots):
            sources.append(ImageTable(file, columns.get("image", "image"), columns.get("label", "label")))
    return sources


class SourcesState(NamedTuple):
    """The state of all files."""

    key: str
    """64 hex digits that differ unless all files and how they are read are the same."""
    files: int
    size_bytes: int


def sources_state(sources: list[ImageSource], version: str, on_progress: Callable[[], None]) -> SourcesState:
    """Return the state of the files; `version`: part of the key."""
    hashed = hashlib.sha256(version.encode())
    newest = files = size = 0
    for source in sources:
        named = (source.path,) if isinstance(source, ImageFolder) else (source.file.path, source.image, source.label)
        hashed.update(json.dumps(named).encode())
        for state in source.states(on_progress):
            hashed.update(json.dumps(state).encode())
            newest = max(newest, *state[-2:])
            files, size = files + 1, size + state[-3]
    if time.time() - newest / 1e9 < _SETTLED_SECONDS:
        hashed.update(secrets.token_bytes(16))
    return SourcesState(hashed.hexdigest(), files, size)


def _folder(field: str, path: str, roots: AllowedRoots) -> ImageFolder:
    """List a folder. Hidden files and folders, and files beside the classes, are no images."""
    files: list[tuple[str, str]] = []
    try:
        for label in sorted(entry.name for entry in _entries(path, roots) if entry.is_dir):
            inside = sorted(_entries(os.path.join(path, label), roots))
            for entry in inside:
                _check_file(field, path, os.path.join(path, label, entry.name), entry)
            files += [(label, entry.name) for entry in inside]
            if len(files) > MAX_IMAGES:
                raise RefusedError(f"{field}: {path} has more than {MAX_IMAGES:,} images")
    except OutsideRootsError as error:
        raise RefusedError(f"{field}: {path} {error.problem}") from None
    except OSError as error:
        raise RefusedError(
            f"{field}: {error.filename or path} cannot be read: {error.strerror or error}",
            "Give the path of a folder that the workers' nodes can read.",
        ) from None
    if not files:
        raise RefusedError(
            f"{field}: {path} has no subfolder with images",
            "Put the images of each class into a folder with the name of the class.",
        )
    return ImageFolder(field, path, tuple(files), roots)


class _Entry(NamedTuple):
    name: str
    is_dir: bool
    is_file: bool


def _entries(path: str, roots: AllowedRoots) -> list[_Entry]:
    """Return the entries of a folder, in any order, except hidden entries."""
    handle = roots.open(path, os.O_DIRECTORY)
    try:
        with os.scandir(handle) as entries:
            visible = (entry for entry in entries if not entry.name.startswith("."))
            return [_Entry(entry.name, entry.is_dir(), entry.is_file()) for entry in visible]
    finally:
        os.close(handle)


def _check_file(field: str, root: str, path: str, entry: _Entry) -> None:
    if entry.is_dir:
        raise RefusedError(
            f"{field}: {path} is a folder, and {root} must have a folder for each class with its images directly in it",
            "Name the folder above those of the classes, such as that of one split.",
        )
    if not entry.is_file:
        # To open a pipe would wait for ever.
        raise RefusedError(f"{field}: {path} is no regular file", "Remove it.")


def _checked(label: str) -> str:
    if not label or len(label) > MAX_LABEL or not is_encodable(label):
        raise BadImageError(f"has a label that is no text, empty, or longer than {MAX_LABEL} characters")
    return label
