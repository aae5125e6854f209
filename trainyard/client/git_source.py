"""Reads the git state of a folder of code: its files, the commit, and the uncommitted changes."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from trainyard.contract.spec.user_code import GIT_REPOSITORY

_SECONDS = 30
_MAX_DIFF_BYTES = 1024 * 1024
DIFF_FILE = ".trainyard/uncommitted.diff"
"""The file of an archive with the changes since the commit."""


@dataclass(frozen=True)
class GitSource:
    """The state of a git work tree."""

    files: frozenset[str]
    """Files that git tracks or does not ignore, submodules included; paths are relative to the folder."""
    commit: str
    """Empty before the first commit."""
    branch: str
    diff: bytes
    """The changes of tracked files since the commit, at most 1 MiB of them."""
    repository: str = ""
    """Name of the folder that has the repository."""
    ignored: tuple[str, ...] = ()
    """Ignored files and folders; a folder that is ignored as a whole ends in a slash."""

    @property
    def labels(self) -> dict[str, str]:
        """Labels for the job's `metadata`."""
        labels = {GIT_REPOSITORY: self.repository}
        labels |= {"git_commit": self.commit, "git_branch": self.branch, "git_dirty": "yes" if self.diff else "no"}
        return {name: value for name, value in labels.items() if value}


def read_git(folder: Path) -> GitSource | None:
    """Return the git state of a folder; None outside of a work tree, or if git does not answer."""
    files = _files(folder)
    if not files:
        return None
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD") or b""
    branch = _git(folder, "rev-parse", "--abbrev-ref", "HEAD") or b""
    top = _git(folder, "rev-parse", "--show-toplevel") or b""
    options = ("--no-ext-diff", "--no-color", "--relative", "--submodule=diff")
    diff = _git(folder, "diff", *options, "HEAD") if commit else b""
    return GitSource(
        files=frozenset(files),
        commit=commit.decode().strip(),
        branch=_label(branch) if commit else "",
        diff=(diff or b"")[:_MAX_DIFF_BYTES],
        repository=_label(top.strip().rpartition(b"/")[2]),
        ignored=_ignored(folder),
    )


def find_work_tree(folder: Path) -> Path | None:
    """Return the root of the work tree that has files of the folder; None outside of a work tree, or if git ignores
    the folder."""
    top = (_git(folder, "rev-parse", "--show-toplevel") or b"").rstrip(b"\n")
    return Path(os.fsdecode(top)) if top and _files(folder) else None


def _files(folder: Path) -> set[str]:
    """Return the files that git lists below a folder. A folder in git's list is another work tree, of a submodule or a
    nested clone, and has its own list."""
    files: set[str] = set()
    for listed in (_git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard") or b"").split(b"\0"):
        name = listed.decode("utf-8", "surrogateescape").rstrip("/")
        path = folder / name
        if not name or path.is_symlink() or not path.is_dir():
            files.add(name)
        elif (path / ".git").exists():
            files |= {f"{name}/{inner}" for inner in _files(path)}
    return files - {""}


def _ignored(folder: Path) -> tuple[str, ...]:
    options = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    listed = (_git(folder, *options) or b"").split(b"\0")
    return tuple(name.decode("utf-8", "surrogateescape") for name in listed if name and not name.startswith(b"../"))


def _label(text: bytes) -> str:
    """Return text that is valid in a label: without control characters."""
    return "".join(character for character in text.decode(errors="replace").strip() if character.isprintable())[:512]


def _git(folder: Path, *arguments: str) -> bytes | None:
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
