"""Finds TensorBoard's event files below the folders that a program writes to. Their number and depth are limited."""

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOG_FOLDER_VARIABLES = ("TENSORBOARD_LOGDIR", "TENSORBOARD_LOGGING_DIR")
"""Variables by which a job names its log folder; Hugging Face's Trainer reads the second."""
EVENT_FILE_MARK = "tfevents"
_MAX_DEPTH = 8
_MAX_FOLDERS = 2000
_MAX_ENTRIES = 100_000
_SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages"})
_VIRTUAL_ENVIRONMENT = "pyvenv.cfg"


@dataclass(frozen=True)
class EventPath:
    """An event file and the folder of the program in which it is."""

    path: Path
    root: Path
    size: int


def log_folders(working: Path, checkpoints: Path, variables: Mapping[str, str]) -> list[Path]:
    """Return the folders in which a program's event files are expected.

    Args:
        working: The program's working directory.
        variables: The environment of the ranks.
    """
    named = [Path(os.path.expanduser(variables[name])) for name in LOG_FOLDER_VARIABLES if variables.get(name)]
    return [working, checkpoints, *(working / folder for folder in named)]


def event_paths(roots: Sequence[Path]) -> list[EventPath]:
    """Return the event files below the folders, each once. Symbolic links and hidden folders are not followed."""
    known: dict[Path, EventPath] = {}
    for root in roots:
        # The path of the folder itself may contain links, which the user has chosen.
        for event_path in _walk(Path(os.path.realpath(root))):
            known.setdefault(event_path.path, event_path)
    return list(known.values())


def _walk(root: Path) -> Iterator[EventPath]:
    """Yield event files, the nearest to the root first, so that a limit cuts off the deepest."""
    folders, folder_count, entry_count = deque([(str(root), 0)]), 1, 0
    while folders:
        folder, depth = folders.popleft()
        below: list[str] = []
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                entry_count += 1
                if entry_count > _MAX_ENTRIES:
                    return
                if entry.name == _VIRTUAL_ENVIRONMENT:
                    below = []
                    break
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                        below.append(entry.path)
                elif EVENT_FILE_MARK in entry.name and entry.is_file(follow_symlinks=False):
                    yield EventPath(Path(entry.path), root, entry.stat(follow_symlinks=False).st_size)
        if depth < _MAX_DEPTH:
            chosen = sorted(below)[: _MAX_FOLDERS - folder_count]
            folder_count += len(chosen)
            folders.extend((path, depth + 1) for path in chosen)
