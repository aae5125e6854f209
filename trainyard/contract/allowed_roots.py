"""The folders from which specs may read models and data, checked by the service and again by the worker."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Annotated

from pydantic import Field, StringConstraints

from trainyard.contract.base import Document
from trainyard.contract.layout import DATA_CACHE

_Root = Annotated[str, StringConstraints(max_length=4096)]
_Roots = Annotated[tuple[_Root, ...], Field(max_length=256)]


_OWN_FOLDERS = frozenset({"code", DATA_CACHE})
_RESULTS = (("checkpoints",), ("export",), ("artifacts",))
"""Results of jobs, in their folders in the runs directory."""
_OUTSIDE = "leads out of the folders that this service allows (TRAINYARD_ALLOWED_ROOTS)"


class OutsideRootsError(ValueError):
    """A path that is not allowed once its links are resolved."""

    def __init__(self, path: PurePath, problem: str) -> None:
        """`problem`: continues a sentence that begins with the path, and names the hint."""
        super().__init__(f"{path} {problem}")
        self.problem = problem


class AllowedRoots(Document):
    """Allowed folders, and excluded files and folders below them. The deepest entry that contains a path decides.

    Credentials are in files and folders whose names begin with a dot (`.ssh`, `.aws`, `.netrc`), so such a name is
    allowed in the path of a root alone: `/home/ada/.cache/huggingface` can be a root, and `.cache` below another cannot
    be read.
    """

    allowed: _Roots = ("/",)
    excluded: _Roots = ()
    runs: _Root | None = None
    """The runs directory, if it is a root. In a job's folder there, only the results of the job are allowed: the files
    of attempts hold tokens."""
    hidden: bool = False
    """Whether names below a root may begin with a dot."""

    def contains(self, path: PurePath) -> bool:
        """Return whether a path is below an allowed root and not excluded, by its text alone."""
        return self._allows(path, PurePath)

    def hidden_problem(self, path: PurePath) -> str | None:
        """Return why a path is hidden, by its text alone; None if it is not."""
        return self._hidden_problem(path, map(PurePath, self.allowed))

    def resolve(self, path: Path) -> Path:
        """Return the real path, with links resolved.

        Raises:
            OSError: There is nothing at this path.
            OutsideRootsError: The real path is not allowed, or is hidden.
        """
        real = path.resolve(strict=True)
        if not self._allows(real, _real_path):
            raise OutsideRootsError(path, _OUTSIDE)
        if (problem := self._hidden_problem(real, map(_real_path, self.allowed))) is not None:
            raise OutsideRootsError(path, problem)
        return real

    def open(self, path: str | Path, flags: int = 0, *, folder: int | None = None) -> int:
        """Open a file or a folder for reading, and return its descriptor. The real path of the opened file is checked,
        so that nobody can replace a link between the check and the opening.

        Args:
            flags: More flags of `os.open`. With `O_DIRECTORY` only a folder is opened.
            folder: The descriptor of the folder to which the path is relative.

        Raises:
            OSError: It cannot be opened.
            OutsideRootsError: The real path is not allowed, or is hidden.
        """
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)
        try:
            self.resolve(Path(f"/proc/self/fd/{handle}"))
        except BaseException as error:
            os.close(handle)
            if isinstance(error, OutsideRootsError):
                raise OutsideRootsError(PurePath(path), error.problem) from None
            raise
        return handle

    def _allows(self, path: PurePath, read: Callable[[str], PurePath]) -> bool:
        """Return whether a path is allowed; `read` makes paths of the roots."""
        depth = _depth(path, map(read, self.allowed))
        if depth <= _depth(path, map(read, self.excluded)):
            return False
        runs = None if self.runs is None else read(self.runs)
        is_of_runs = runs is not None and depth == len(runs.parts) and path.is_relative_to(runs)
        return not (is_of_runs and _is_private(path.parts[depth:]))

    def _hidden_problem(self, path: PurePath, allowed: Iterable[PurePath]) -> str | None:
        below = path.parts[_depth(path, allowed) :]
        name = next((part for part in below if part.startswith(".")), None)
        if name is None or self.hidden:
            return None
        return (
            f"has the hidden name `{name}` in its path, which no spec may read: move the files, or let an "
            "administrator name their folder in TRAINYARD_ALLOWED_ROOTS"
        )


UNRESTRICTED_ROOTS = AllowedRoots(hidden=True)


def _real_path(root: str) -> PurePath:
    return Path(root).resolve()


def _is_private(below: tuple[str, ...]) -> bool:
    """Return whether a path below the runs directory, given as parts, is neither data nor a result of a job."""
    folder = below[0] if below else ""
    return below[1:2] not in _RESULTS if folder.startswith("job_") else folder in _OWN_FOLDERS


def _depth(path: PurePath, folders: Iterable[PurePath]) -> int:
    """Return the number of parts of the deepest folder that contains the path; 0 if none does."""
    return max((len(folder.parts) for folder in folders if path.is_relative_to(folder)), default=0)
