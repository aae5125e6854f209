"""The folder of code that is uploaded, and the folder in it where the program starts."""

import os
from dataclasses import dataclass
from pathlib import Path

from trainyard.client.git_source import find_work_tree


@dataclass(frozen=True)
class CodeFolder:
    """A folder to upload."""

    root: Path
    start: str = ""
    """The folder in which the program starts, relative to the root; empty: the root."""

    @property
    def working(self) -> Path:
        """The folder to which the paths of the command are relative."""
        return self.root / self.start

    @property
    def note(self) -> str | None:
        """Note for the user."""
        if not self.start:
            return None
        return f"the git repository {self.root} is uploaded, and the program starts in its folder {self.start}"

    def name_of(self, path: str | Path) -> str | None:
        """Return a path, which is absolute or relative to the working folder, relative to the root; None if it is
        outside."""
        root = Path(os.path.abspath(self.root))
        absolute = Path(os.path.abspath(root / self.start / path))
        return absolute.relative_to(root).as_posix() if absolute.is_relative_to(root) else None

    def relative(self, name: str) -> str:
        """Return a path that is relative to the root, relative to the working folder."""
        return os.path.relpath(name, self.start or ".")


def code_folder(given: str | Path | None) -> CodeFolder:
    """Return the given folder; else the git repository that has the current folder, or the current folder.

    The repository of a home folder is not uploaded as a whole.
    """
    if given is not None:
        return CodeFolder(Path(given))
    here = Path.cwd()
    root = find_work_tree(here)
    if root is None or not here.is_relative_to(root) or here == root or Path.home().is_relative_to(root):
        return CodeFolder(Path())
    return CodeFolder(root, here.relative_to(root).as_posix())
