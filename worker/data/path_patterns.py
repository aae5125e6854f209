"""The paths that match a pattern, without listing a folder outside of the roots."""

import fnmatch
import glob
import os
from collections.abc import Iterator

from trainyard.contract.allowed_roots import AllowedRoots

_MAX_DEPTH = 64
"""The depth to which `**` descends: a link may lead to a folder above it."""


def matching_paths(pattern: str, roots: AllowedRoots) -> set[str]:
    """Return the paths that `glob.glob(pattern, recursive=True)` finds for the absolute path of a pattern.

    Raises:
        OutsideRootsError: The pattern needs the names in a folder that is not allowed, or is hidden.
    """
    parts = [part for part in pattern.split("/") if part]
    return set(_below("/", parts, roots)) if parts else set()


def _below(folder: str, parts: list[str], roots: AllowedRoots) -> Iterator[str]:
    """Yield the paths in a folder that match the rest of a pattern."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        for inner in _folders(folder, roots):
            yield from _below(inner, rest, roots) if rest else _all(inner, roots)
    elif not glob.has_magic(part):
        path = os.path.join(folder, part)
        if rest:
            yield from _below(path, rest, roots)
        elif os.path.lexists(path):
            yield path
    else:
        for name, is_folder in _listed(folder, roots):
            if _matches(name, part):
                path = os.path.join(folder, name)
                if not rest:
                    yield path
                elif is_folder:
                    yield from _below(path, rest, roots)


def _folders(folder: str, roots: AllowedRoots, depth: int = 0) -> Iterator[str]:
    """Yield a folder and the folders below it that are not hidden."""
    yield folder
    if depth < _MAX_DEPTH:
        for name, is_folder in _listed(folder, roots):
            if is_folder and not name.startswith("."):
                yield from _folders(os.path.join(folder, name), roots, depth + 1)


def _all(folder: str, roots: AllowedRoots) -> Iterator[str]:
    return (os.path.join(folder, name) for name, _ in _listed(folder, roots) if not name.startswith("."))


def _matches(name: str, part: str) -> bool:
    return fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))


def _listed(folder: str, roots: AllowedRoots) -> list[tuple[str, bool]]:
    """Return the names in a folder and whether they are folders; nothing if it cannot be listed."""
    try:
        handle = roots.open(folder, os.O_DIRECTORY)
    except OSError:
        return []
    try:
        with os.scandir(handle) as entries:
            return [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        return []
    finally:
        os.close(handle)
