"""Files beside a program that were not uploaded because git ignores them."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from trainyard.client.code_archive import ALWAYS_IGNORED
from trainyard.client.code_folder import CodeFolder
from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_python import is_in_environment

_RESULTS = (
    *("*.log", "build", "dist", "wandb", "mlruns", "runs", "lightning_logs", "checkpoints", "outputs", "logs", "tmp"),
    *(".*", "*.so", "*.o"),
)
"""Ignored files that programs and tools write, and none reads."""
_SEARCH_PATHS = frozenset({"PYTHONPATH", "PATH", "LD_LIBRARY_PATH"})
_SHOWN = 3
_QUOTED = re.compile(r"['\"]([^'\"\n]{1,1000})['\"]")
_CODE_FOLDER = re.compile(r"^/.*/(?:attempts/[^/]+/code|job_[0-9a-z]+/work)/")


def included_files(folder: CodeFolder, paths: Iterable[str | Path]) -> frozenset[str]:
    """Return the files at paths, which are relative to the working folder, or below them, relative to the root.

    Raises:
        InvalidRequestError: a path does not exist, or is outside of the root.
    """
    root, files = Path(os.path.abspath(folder.root)), set()
    for given in paths:
        path = Path(os.path.abspath(root / folder.start / given))
        if not path.is_relative_to(root) or not path.exists():
            where = "is outside of" if path.exists() else "does not exist in"
            shown = str(root) if path.exists() else os.path.abspath(folder.working)
            raise InvalidRequestError(f"{str(given)!r} {where} the folder {shown!r}", param="include")
        matches = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        files |= {one.relative_to(root).as_posix() for one in matches}
    return frozenset(files)


def ignored_note(ignored: Iterable[str], uploaded: Collection[str], folder: CodeFolder) -> str | None:
    """Return a note about ignored files that a program may read; None if there are none.

    Args:
        ignored: Paths that git ignores, relative to the root; a folder that is ignored as a whole ends in a slash.
        uploaded: The files that are uploaded.
    """
    uploaded_paths = {
        parent.as_posix() for name in uploaded for parent in (PurePosixPath(name), *PurePosixPath(name).parents)
    }
    named = sorted(name for name in ignored if name.rstrip("/") not in uploaded_paths and not _is_result(name))
    if not named:
        return None
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    shown = [folder.relative(name) + "/" * name.endswith("/") for name in named[:_SHOWN]]
    return f"not uploaded, as git ignores them: {', '.join(shown)}{more}; upload one with --include PATH"


def _is_result(name: str) -> bool:
    patterns = (*ALWAYS_IGNORED, *_RESULTS)
    return any(fnmatchcase(part, pattern) for part in PurePosixPath(name).parts for pattern in patterns)


def missing_file_hint(message: str, folder: CodeFolder, uploaded: Collection[str]) -> str | None:
    """Return why a file that a program did not find is missing there, if the local folder has it; else None.

    Args:
        message: The message of the error; it has the path in quotes.
        uploaded: The files that were uploaded.
    """
    for path in _QUOTED.findall(message):
        inside = _CODE_FOLDER.sub("", path)
        name = os.path.normpath(path if inside == path else folder.relative(inside))
        if os.path.isabs(name) or name in (".", ".."):
            continue
        if not (folder.working / name).exists():
            if hint := _missing_folder_hint(os.path.dirname(name), folder, uploaded):
                return hint
            continue
        in_code = folder.name_of(name)
        if in_code is None:
            return (
                f"{name!r} exists here, outside of the folder {os.path.abspath(folder.root)!r} that was uploaded; name "
                "a folder that holds both with --code, or read it from a shared folder by its absolute path"
            )
        if in_code in uploaded or any(one.startswith(f"{in_code}/") for one in uploaded):
            continue
        return (
            f"{name!r} exists in {os.path.abspath(folder.working)!r} and was not uploaded, since git or "
            f".trainyardignore excludes it; upload it with --include {name}, or read it from a shared folder by its "
            "absolute path"
        )
    return None


def _missing_folder_hint(path: str, folder: CodeFolder, uploaded: Collection[str]) -> str | None:
    """Return why a folder is missing in which a program wanted to write, if it exists here; else None."""
    in_code = folder.name_of(path) if path else None
    if (
        in_code is None
        or not (folder.working / path).is_dir()
        or any(one.startswith(f"{in_code}/") for one in uploaded)
    ):
        return None
    return (
        f"the folder {path!r} exists here and not in the job, since no file of it was uploaded; create it in the "
        f"program: os.makedirs({path!r}, exist_ok=True)"
    )


def relative_entries(variables: Mapping[str, str], folder: CodeFolder, uploaded: Collection[str]) -> dict[str, str]:
    """Return variables in whose search paths the uploaded folders are relative to the working folder."""
    folders = {parent.as_posix() for name in uploaded for parent in PurePosixPath(name).parents}

    def relative(entry: str) -> str:
        name = folder.name_of(entry) if os.path.isabs(entry) else None
        return folder.relative(name) if name in folders and name is not None else entry

    return {
        name: os.pathsep.join(map(relative, value.split(os.pathsep))) if name in _SEARCH_PATHS else value
        for name, value in variables.items()
    }


def program_path(argv: Sequence[str], folder: CodeFolder) -> tuple[tuple[str, ...], str | None]:
    """Return the program with a path relative to the working folder, if it is in the code, and otherwise a note.

    Raises:
        InvalidRequestError: a relative path leads out of the code.
    """
    if argv[0] == "-m":
        return tuple(argv), None
    name = folder.name_of(argv[0])
    if is_in_environment(folder.working / argv[0]):
        return (os.path.abspath(folder.working / argv[0]), *argv[1:]), None
    if name is not None:
        return (folder.relative(name), *argv[1:]), None
    if not os.path.isabs(argv[0]):
        raise InvalidRequestError(
            f"{argv[0]!r} is outside of the uploaded folder {os.path.abspath(folder.root)!r}; change to its folder, "
            "use --code, or name a file of the nodes by its absolute path"
        )
    path = os.path.normpath(argv[0])
    return (path, *argv[1:]), f"{path} is outside of the uploaded folder: it must exist at this path on the nodes"
