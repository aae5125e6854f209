"""The files that a source names, and the parts of them that are read at once."""

import glob
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from trainyard.contract.allowed_roots import AllowedRoots, OutsideRootsError
from trainyard.contract.formats.json_arrays import ArrayDetector
from trainyard.contract.spec.text_sources import FileSource, listed_paths
from worker.core.errors import RefusedError
from worker.data.path_patterns import matching_paths

CHUNK_BYTES = 2**22
"""Approximate size of a part of a file, which a process reads at once."""
MAX_FILES = 100_000
MAX_LINE_BYTES = 2**26
"""A longer line holds no example: its tokens alone would need gigabytes while it is read."""
BLOCK_BYTES = 2**20
"""Bytes that are read at once."""

RecordKind = Literal["jsonl", "array", "parquet", "arrow"]
"""`array`: one JSON array instead of lines."""


@dataclass(frozen=True)
class FileState:
    """Metadata of a file that changes when the file changes, so that the file need not be read."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True)
class DataFile:
    """A file of records."""

    field: str
    """The spec's field that names it, for messages."""
    path: str
    kind: RecordKind
    state: FileState
    roots: AllowedRoots

    def refuse(self, problem: str, hint: str | None = None) -> RefusedError:
        """Return an error about this file."""
        return RefusedError(f"{self.field}: {self.path} {problem}", hint)


@dataclass(frozen=True)
class Chunk:
    """A part of a file: bytes from `start` up to `stop` (lines, or whole items of an array), row groups (parquet) or
    record batches (arrow)."""

    file: DataFile
    start: int
    stop: int
    first_row: int = 0
    """The rows or items of the file before this part. Lines are counted while they are read, since no index of them
    exists."""


def find_files(field: str, source: FileSource, roots: AllowedRoots) -> list[DataFile]:
    """Return the files of a source in their order.

    Raises:
        RefusedError: A path names no file, an unreadable file, or a file outside of the roots.
    """
    kind: RecordKind = "arrow" if source.source == "dataset" else source.source
    paths = [path for pattern in listed_paths(source.path) for path in _expanded(field, pattern, roots)]
    if source.source == "dataset":
        paths = [path for folder in paths for path in _files_of_dataset(field, folder, roots)]
    if len(paths) > MAX_FILES:
        raise RefusedError(f"{field}: names {len(paths)} files, more than {MAX_FILES}")
    return [_examined(field, path, kind, roots) for path in paths]


_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
"""Files that `datasets.save_to_disk` writes: the first two for one split, the last for several."""


def is_saved_dataset(path: str) -> bool:
    """Return whether `datasets.save_to_disk` wrote a folder, of one split or of several."""
    one = all(os.path.isfile(os.path.join(path, name)) for name in (_STATE, _INFO))
    return one or os.path.isfile(os.path.join(path, _SPLITS))


@contextmanager
def opened(file: DataFile) -> Iterator[BinaryIO]:
    """Open the file that was found.

    Raises:
        RefusedError: It cannot be read, was replaced or changed, or is outside of the roots.
    """
    with opened_path(file.field, file.path, file.roots) as handle:
        check_unchanged(file, handle)
        yield handle


def check_unchanged(file: DataFile, handle: BinaryIO) -> None:
    """Raise RefusedError if the open file was replaced or changed after it was found."""
    if state_of(handle) != file.state:
        raise file.refuse("changed while it was read", "Retry the job when the file is complete.")


@contextmanager
def opened_path(field: str, path: str, roots: AllowedRoots) -> Iterator[BinaryIO]:
    """Open a file that a field of the spec names.

    Raises:
        RefusedError: It cannot be read, or is outside of the roots.
    """
    with _refusing(field, path):
        handle = roots.open(path)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise _no_file(field, path, is_folder=stat.S_ISDIR(status.st_mode))
        with os.fdopen(handle, "rb") as file:
            yield file


@contextmanager
def opened_folder(field: str, path: str, roots: AllowedRoots) -> Iterator[int]:
    """Open a folder that a field of the spec names, and yield its descriptor.

    Raises:
        RefusedError: It cannot be read, or is outside of the roots.
    """
    with _refusing(field, path):
        handle = roots.open(path, os.O_DIRECTORY)
        try:
            yield handle
        finally:
            os.close(handle)


@contextmanager
def _refusing(field: str, path: str) -> Iterator[None]:
    """Translate errors that occur while a file is read."""
    try:
        yield
    except OutsideRootsError as error:
        raise RefusedError(f"{field}: {path} {error.problem}") from None
    except OSError as error:
        raise RefusedError(
            f"{field}: {path} cannot be read: {error.strerror or error}",
            "Give the path of a file that the workers' nodes can read.",
        ) from None


def _no_file(field: str, path: str, *, is_folder: bool) -> RefusedError:
    if not is_folder:
        return RefusedError(f"{field}: {path} is no regular file", "Give the path of a file.")
    return RefusedError(
        f"{field}: {path} is a folder",
        f"Name its files by a pattern, such as {path.rstrip('/')}/*; source `dataset` reads folders saved by "
        "save_to_disk.",
    )


def state_of(handle: BinaryIO) -> FileState:
    """Return the state of an open file."""
    status = os.fstat(handle.fileno())
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _expanded(field: str, pattern: str, roots: AllowedRoots) -> list[str]:
    """Return the paths of a pattern, sorted. A path that exists is no pattern."""
    if os.path.lexists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    try:
        paths = sorted(matching_paths(pattern, roots))
    except OutsideRootsError as error:
        raise RefusedError(f"{field}: {pattern} {error.problem}") from None
    if not paths:
        raise RefusedError(f"{field}: no file matches {pattern} on this node")
    return paths


_SIGNATURES = (
    (b"PAR1", "a Parquet file", "Set source: parquet for it."),
    (b"ARROW1", "an Arrow file", "Set source: arrow for it."),
    *(
        (start, "compressed", "Decompress it.")
        for start in (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ", b"PK\3\4")
    ),
    *((start, "text in UTF-16", "Convert it to UTF-8.") for start in (b"\xff\xfe", b"\xfe\xff")),
)
"""The first bytes of files that hold no lines of JSON, with their kind and a hint."""


def _refuse_other_kinds(field: str, path: str, handle: BinaryIO) -> None:
    """Raise RefusedError: the first bytes show that a file holds no lines of JSON."""
    start = handle.read(8)
    handle.seek(0)
    for signature, name, hint in _SIGNATURES:
        if start.startswith(signature):
            raise RefusedError(f"{field}: {path} is {name}, and source `jsonl` reads lines of JSON", hint)


def _examined(field: str, path: str, kind: RecordKind, roots: AllowedRoots) -> DataFile:
    with opened_path(field, path, roots) as handle:
        state = state_of(handle)
        if kind == "jsonl":
            _refuse_other_kinds(field, path, handle)
        is_array = kind == "jsonl" and array_start(handle) is not None
        return DataFile(field, path, "array" if is_array else kind, state, roots)


def array_start(handle: BinaryIO) -> int | None:
    """Return the position after the `[` of a file that holds one JSON array; None if it has lines."""
    detector = ArrayDetector(MAX_LINE_BYTES)
    # Most files have lines, which the first bytes show.
    size = 2**10
    while detector.is_array is None and (block := handle.read(size)):
        detector.feed(block)
        size = BLOCK_BYTES
    detector.finish()
    return detector.start if detector.is_array else None


def _files_of_dataset(field: str, folder: str, roots: AllowedRoots) -> list[str]:
    """Return the files of a folder that `datasets.save_to_disk` wrote, in the order of its state."""
    with opened_folder(field, folder, roots) as handle, os.scandir(handle) as scanned:
        entries = list(scanned)
        if any(entry.name == _SPLITS for entry in entries):
            names = sorted(entry.name for entry in entries if entry.is_dir())
            raise RefusedError(
                f"{field}: {folder} holds several splits: {', '.join(names[:10])}",
                f"Name the folder of one split, such as {folder.rstrip('/')}/{names[0] if names else 'train'}.",
            )
    with opened_path(field, os.path.join(folder, _STATE), roots) as file:
        try:
            names = [_plain_name(item["filename"]) for item in json.load(file)["_data_files"]]
        except (ValueError, LookupError, TypeError, RecursionError):
            problem = "has a state.json that is not that of a saved data set"
            raise RefusedError(f"{field}: {folder} {problem}", "Save it again with save_to_disk.") from None
    return [os.path.join(folder, name) for name in names]


def _plain_name(name: Any) -> str:
    """Raises ValueError: it is not the name of a file."""
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise ValueError("not a file name")
    return name
