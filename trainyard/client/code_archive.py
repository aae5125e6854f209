"""A reproducible archive of a folder of code: the same files give the same bytes."""

import hashlib
import io
import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath

from trainyard.client.git_source import DIFF_FILE, GitSource
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.sizes import format_size
from trainyard.contract.spec.user_code import MAX_CODE_BYTES

IGNORE_FILE = ".trainyardignore"

ALWAYS_IGNORED = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", ".venv", "venv", "node_modules", ".DS_Store"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", "*.egg-info", ".tox", ".idea", ".vscode"),
)
_Pattern = tuple[str, str]
"""A pattern of a file of ignored names, after the path of the file's folder."""
_ALWAYS_LISTED = 1000
"""Entries that are listed in any case, so that an error can name the largest."""
_LARGEST = 5
_MANY = 100
"""A file or folder below this part of the whole size is not listed."""


@dataclass(frozen=True)
class CodeArchive:
    """An uncompressed tar of regular files and empty folders, and its digest."""

    data: bytes
    digest: str
    names: frozenset[str] = frozenset()
    """The paths of its files."""


def pack(
    folder: Path, *, without: Path | None = None, source: GitSource | None = None, limit: int = MAX_CODE_BYTES
) -> CodeArchive:
    """Archive a folder, without caches and the like, and without files that its `.trainyardignore` excludes.

    That file has a pattern on each line: `*.csv` and `data` match a name at any depth, `runs/old` a path from the
    file's folder, and a trailing slash only folders; `#` starts a comment. Folders inside can have such files too.

    Args:
        without: A file to leave out, such as the spec: a change of the spec does not change the code.
        source: State of the git work tree: only its files are archived, with the uncommitted changes as a file.

    Raises:
        SpecError: it is not a folder, is larger than `limit` bytes, or contains a link that leads out of it.
    """
    root = folder.expanduser().resolve()
    if not root.is_dir():
        raise _problem(f"{str(folder)!r} is not a folder")
    excluded = without.expanduser().resolve() if without else None
    listed = _with_folders(source.files) if source else None
    # Each entry takes a block of the archive. Links to folders that have links can make any number of entries.
    most = max(limit // tarfile.BLOCKSIZE, _ALWAYS_LISTED)
    entries = sorted(islice(_files(root, root, [], listed), most + 1))
    files = [(name, path) for name, path in entries if path.resolve() != excluded]
    sizes = {name: path.stat().st_size for name, path in files if not name.endswith("/")}
    if sum(sizes.values()) > limit or len(entries) > most:
        raise _too_large(folder, sizes, limit)
    data = _tar(files, source.diff if source else b"")
    if len(data) > limit:
        raise _too_large(folder, sizes, limit)
    return CodeArchive(data, f"sha256:{hashlib.sha256(data).hexdigest()}", frozenset(sizes))


def _tar(files: list[tuple[str, Path]], diff: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in files:
            if name.endswith("/"):
                entry = tarfile.TarInfo(name.rstrip("/"))
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
                continue
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(content))
        if diff:
            entry = tarfile.TarInfo(DIFF_FILE)
            entry.size = len(diff)
            archive.addfile(entry, io.BytesIO(diff))
    return buffer.getvalue()


def _patterns(root: Path, folder: Path) -> list[_Pattern]:
    """Return the patterns of the folder's file, each with the folder's path and a slash; the root's path is empty."""
    file = folder / IGNORE_FILE
    lines = file.read_text().splitlines() if file.is_file() else []
    base = "" if folder == root else f"{folder.relative_to(root).as_posix()}/"
    return [(base, line.strip()) for line in lines if line.strip() and not line.startswith("#")]


def _files(
    root: Path,
    folder: Path,
    above: list[_Pattern],
    listed: frozenset[str] | None,
    shown: str = "",
    around: tuple[Path, ...] = (),
) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder with their names in the archive. Without `listed`, folders that would be empty in the
    archive follow with a slash after their names: a program may write into them.

    Args:
        above: The patterns of the folders above.
        listed: The only paths to archive.
        shown: The folder's name in the archive, which differs from its path behind a link.
        around: The folders through which this one was reached.
    """
    patterns, number, around = above + _patterns(root, folder), 0, (*around, folder)
    for entry in os.scandir(folder):
        path = Path(entry.path)
        name = path.relative_to(root).as_posix()
        if _ignored(name, entry.is_dir(), patterns) or (path / "pyvenv.cfg").exists():
            continue
        if listed is not None and name not in listed:
            continue
        if entry.is_symlink():
            path = _target_of(root, path, name, around)
        number += 1
        if entry.is_dir():
            yield from _files(root, path, patterns, listed, f"{shown}{entry.name}/", around)
        elif entry.is_file():
            yield f"{shown}{entry.name}", path
        else:
            raise _problem(f"{name!r} is neither a file nor a folder; exclude it with {IGNORE_FILE}")
    if not number and listed is None and shown:
        yield shown, folder


def _with_folders(files: frozenset[str]) -> frozenset[str]:
    """Return the paths and all folders above them, so that no other folder is searched."""
    return files | {parent.as_posix() for name in files for parent in PurePosixPath(name).parents}


def _ignored(name: str, folder: bool, patterns: list[_Pattern]) -> bool:
    base = name.rpartition("/")[2]
    if any(fnmatchcase(base, pattern) for pattern in ALWAYS_IGNORED):
        return True
    for above, pattern in patterns:
        bare = pattern.rstrip("/")
        if pattern.endswith("/") and not folder:
            continue
        subject = name.removeprefix(above) if "/" in bare else base
        if fnmatchcase(subject, bare.lstrip("/")):
            return True
    return False


def _target_of(root: Path, path: Path, name: str, around: Sequence[Path]) -> Path:
    """Return the file or folder inside the root that a link leads to. The archive has a copy of it.

    Raises:
        SpecError: The link leads out of the root, or to a folder around it.
    """
    target = path.resolve()
    if not target.is_relative_to(root):
        raise _problem(
            f"{name!r} is a link that leads out of the folder; exclude it with {IGNORE_FILE}, and let the program read "
            f"{str(target)!r} by this path if the nodes have it"
        )
    if any(folder.is_relative_to(target) for folder in around):
        raise _problem(f"{name!r} is a link to a folder around it; exclude it with {IGNORE_FILE}")
    return target


def _too_large(folder: Path, sizes: dict[str, int], limit: int) -> SpecError:
    total = sum(sizes.values())
    kind, parts = "files", sizes
    if max(sizes.values()) * _MANY < total:
        kind, parts = "folders", _folder_sizes(sizes)
    largest = [name for name in sorted(parts, key=lambda name: -parts[name]) if parts[name] * _MANY >= total]
    listing = ", ".join(f"{name} ({format_size(parts[name])})" for name in largest[:_LARGEST])
    content = f"{format_size(total)} in {len(sizes):,} files"
    if total <= limit:
        content = f"{len(sizes):,} files or more, each of which takes up to 1 KiB beside its content"
    return _problem(
        f"{str(folder)!r} holds {content}, and an upload takes at most {format_size(limit)}; exclude other files than "
        f"code with {IGNORE_FILE}. Largest {kind}: {listing}"
    )


def _folder_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the first folders on the path of each file."""
    folders: Counter[str] = Counter()
    for name, size in sizes.items():
        first, slash, _ = name.partition("/")
        folders[first + slash] += size
    return dict(folders)


def _problem(message: str) -> SpecError:
    return SpecError([Problem(param="code", message=message)])
