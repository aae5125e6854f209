"""A folder with an export: its description, and the verification of its files. Loads no torch."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import ValidationError

from trainyard.client.download import file_digest
from trainyard.contract.wire.exported import EXPORT_NOTE, ExportNote
from trainyard.contract.wire.manifest import ManifestFile
from trainyard.loading.errors import LoadError

_HASHING_THREADS = 4


def parse_note(content: bytes, where: str) -> ExportNote:
    """Parse the content of export.json. Raises LoadError: the content is not from this release."""
    try:
        note = ExportNote.model_validate_json(content)
    except ValidationError:
        raise LoadError(f"{EXPORT_NOTE} of {where} cannot be read by this release") from None
    for name in note.files:
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise LoadError(f"{EXPORT_NOTE} of {where} names the file {name!r}, which is outside of the folder")
    return note


def read_note(folder: Path) -> ExportNote | None:
    """Return the description of an export; None if the folder has none. Raises LoadError: it cannot be read."""
    try:
        content = (folder / EXPORT_NOTE).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LoadError(f"cannot read {folder / EXPORT_NOTE}: {error.strerror}") from None
    return parse_note(content, str(folder))


def note_digest(content: bytes) -> str:
    """Return the digest of export.json, which stands for the whole export."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def verify_files(folder: Path, note: ExportNote) -> None:
    """Compare all files of an export with its description.

    Raises:
        LoadError: A file is missing, or has another size or digest.
    """
    with ThreadPoolExecutor(_HASHING_THREADS) as threads:
        problems = threads.map(lambda item: _problem(folder / item[0], item[1]), note.files.items())
        for name, problem in zip(note.files, problems, strict=True):
            if problem:
                raise LoadError(f"{folder / name} {problem}; get the export again")


def _problem(path: Path, expected: ManifestFile) -> str:
    try:
        size = path.stat().st_size
        if size != expected.size:
            return f"has {size} bytes instead of {expected.size}"
        return "" if file_digest(path) == expected.sha256 else "has another digest than when it was written"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
