"""Files beside a program that were not uploaded because git ignores them."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from trainyard.client.code_archive import ALWAYS_IGNORED
from trainyard.client.errors import InvalidRequestError

_RESULTS = (
    *("*.log", "build", "dist", "wandb", "mlruns", "runs", "lightning_logs", "checkpoints", "outputs", "logs", "tmp"),
    *(".*", "*.so", "*.o"),
)
"""Ignored files that programs and tools write, and none reads."""
_SEARCH_PATHS = frozenset({"PYTHONPATH", "PATH", "LD_LIBRARY_PATH"})
_SHOWN = 3
_QUOTED = re.compile(r"['\"]([^'\"\n]{1,1000})['\"]")
_CODE_FOLDER = re.compile(r"^/.*/(?:attempts/[^/]+/code|job_[0-9a-z]+/work)/")


def included_files(folder: Path, paths: Iterable[str | Path]) -> frozenset[str]:
    """Return the files at paths inside of a folder, or below them, relative to the folder.

    Raises:
        InvalidRequestError: a path does not exist, or is outside of the folder.
    """
    root, files = Path(os.path.abspath(folder)), set()
    for given in paths:
        path = Path(os.path.abspath(root / given))
        if not path.is_relative_to(root) or not path.exists():
            where = "is outside of" if path.exists() else "does not exist in"
            raise InvalidRequestError(f"{str(given)!r} {where} the folder {str(root)!r}", param="include")
        matches = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        files |= {one.relative_to(root).as_posix() for one in matches}
    return frozenset(files)


def ignored_note(ignored: Iterable[str], uploaded: Collection[str]) -> str | None:
    """Return a note about ignored files that a program may read; None if there are none.

    Args:
        ignored: Paths that git ignores, relative to the folder; a folder that is ignored as a whole ends in a slash.
        uploaded: The files that are uploaded.
    """
    uploaded_paths = {
        parent.as_posix() for name in uploaded for parent in (PurePosixPath(name), *PurePosixPath(name).parents)
    }
    named = sorted(name for name in ignored if name.rstrip("/") not in uploaded_paths and not _is_result(name))
    if not named:
        return None
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return f"not uploaded, as git ignores them: {', '.join(named[:_SHOWN])}{more}; upload one with --include PATH"


def _is_result(name: str) -> bool:
    patterns = (*ALWAYS_IGNORED, *_RESULTS)
    return any(fnmatchcase(part, pattern) for part in PurePosixPath(name).parts for pattern in patterns)


def missing_file_hint(message: str, folder: Path, uploaded: Collection[str]) -> str | None:
    """Return why a file that a program did not find is missing there, if the local folder has it; else None.

    Args:
        message: The message of the error; it has the path in quotes.
        uploaded: The files that were uploaded.
    """
    for path in _QUOTED.findall(message):
        name = os.path.normpath(_CODE_FOLDER.sub("", path))
        local = folder / name
        if os.path.isabs(name) or name in (".", "..") or not local.exists():
            continue
        if name.startswith("../"):
            return (
                f"{name!r} exists here, outside of the folder {str(folder.absolute())!r} that was uploaded; run from a "
                "folder that holds both, or read it from a shared folder by its absolute path"
            )
        if name in uploaded or any(one.startswith(f"{name}/") for one in uploaded):
            continue
        return (
            f"{name!r} exists in {str(folder.absolute())!r} and was not uploaded, since git or .trainyardignore "
            f"excludes it; upload it with --include {name}, or read it from a shared folder by its absolute path"
        )
    return None


def relative_entries(variables: Mapping[str, str], folder: Path, uploaded: Collection[str]) -> dict[str, str]:
    """Return variables in whose search paths the uploaded folders are relative to the folder, as the job has them."""
    root = Path(os.path.abspath(folder))
    folders = {parent.as_posix() for name in uploaded for parent in PurePosixPath(name).parents}

    def relative(entry: str) -> str:
        path = Path(os.path.normpath(entry))
        inside = path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
        return inside if inside in folders else entry

    return {
        name: os.pathsep.join(map(relative, value.split(os.pathsep))) if name in _SEARCH_PATHS else value
        for name, value in variables.items()
    }


def program_path(argv: Sequence[str], folder: Path) -> tuple[tuple[str, ...], str | None]:
    """Return the program with a path relative to the folder, if it is inside, and otherwise a note.

    Raises:
        InvalidRequestError: a relative path leads out of the folder.
    """
    if argv[0] == "-m":
        return tuple(argv), None
    root = Path(os.path.abspath(folder))
    path = Path(os.path.abspath(root / argv[0]))
    if path.is_relative_to(root):
        return (path.relative_to(root).as_posix(), *argv[1:]), None
    if not os.path.isabs(argv[0]):
        raise InvalidRequestError(
            f"{argv[0]!r} is outside of the uploaded folder {str(root)!r}; change to its folder, use --code, or name a "
            "file of the nodes by its absolute path"
        )
    return (str(path), *argv[1:]), f"{path} is outside of the uploaded folder: it must exist at this path on the nodes"
