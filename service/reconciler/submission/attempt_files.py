"""The files of an attempt that exist before its submission. Pure but for `write_files`."""

import json
from dataclasses import dataclass
from pathlib import Path

from trainyard.contract.layout import RunLayout, write_atomic
from trainyard.contract.spec.training_spec import dump_spec
from trainyard.contract.wire.launch import CurrentAttempt, LaunchDocument

_TOKEN_MODE = 0o600


@dataclass(frozen=True)
class AttemptFiles:
    """Folders and files in the order in which they are made, by paths relative to the run folder."""

    folder_mode: int
    folders: tuple[str, ...]
    files: tuple[tuple[str, int, str], ...]
    """Path, mode and content of each file."""


def attempt_files(folder_name: str, document: LaunchDocument, token: str, created_by: str) -> AttemptFiles:
    """Return the files of an attempt. The launch document comes late: a folder that has it is complete."""
    run = RunLayout(Path())
    folder = run.attempt(folder_name)
    mode = 0o666 & ~document.umask
    current = CurrentAttempt(attempt_id=document.attempt_id, attempt=document.attempt, execution=document.execution)
    files: tuple[tuple[Path, int, str], ...] = (
        (run.spec, mode, _json(dump_spec(document.spec))),
        (run.creator, mode, _json({"created_by": created_by})),
        (folder.token, _TOKEN_MODE, token + "\n"),
        (folder.launch, mode, document.model_dump_json(by_alias=True, indent=2)),
        (run.current, mode, current.model_dump_json(indent=2) + "\n"),
    )
    folders = (folder.root.parent, folder.root, folder.logs, folder.spool, folder.errors, folder.submitit)
    named = tuple((str(path), permissions, content) for path, permissions, content in files)
    return AttemptFiles(0o777 & ~document.umask, tuple(map(str, folders)), named)


def write_files(root: Path, files: AttemptFiles) -> None:
    """Write the files of an attempt into the run folder, which is made if it does not exist.

    Raises:
        OSError: the run folder cannot be written.
    """
    for folder in ("", *files.folders):
        (root / folder).mkdir(mode=files.folder_mode, parents=True, exist_ok=True)
    for path, mode, content in files.files:
        write_atomic(root / path, content, mode=mode)


def _json(data: object) -> str:
    return json.dumps(data, indent=2) + "\n"
