"""The files that a program wrote in its working directory: artifacts of its job, below `output/`."""

import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.checkpoints.safe_files import list_files
from service.core.untrusted_files import UntrustedFiles
from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.output_paths import OUTPUT_ARTIFACTS, is_checkpoint_file, is_output, output_paths
from trainyard.contract.spec.user_code import start_folder
from trainyard.contract.wire.files import FileResource

_MAX_ATTEMPTS = 10_000
_MAX_ENTRIES = 1000
"""Entries of each folder with checkpoints that are looked at."""
_PREFIX = f"{OUTPUT_ARTIFACTS}/"


@dataclass(frozen=True)
class ProgramOutput:
    """The working directory of a job's newest attempt, and the paths in it that are artifacts."""

    folder: Path
    paths: tuple[str, ...]

    @classmethod
    def find(cls, files: UntrustedFiles, run: RunLayout, spec: Mapping[str, Any]) -> "ProgramOutput | None":
        """Return it; None for a built-in task, and while no attempt has a working directory."""
        if not task_kind(spec["task"]).runs_program:
            return None
        try:
            attempts = map(run.attempt, files.list_names(run.attempts, _MAX_ATTEMPTS))
        except OSError:
            return None
        for attempt in sorted(attempts, key=lambda one: one.number, reverse=True):
            try:
                files.status(attempt.output)
            except OSError:
                continue
            return cls(_folder(files, attempt), _paths(spec))
        return None

    def list(self, files: UntrustedFiles) -> list[FileResource]:
        """Return the files, with their paths as artifacts."""
        listed = list_files(files, self.folder, hidden=False, below=self.paths)
        return [file.model_copy(update={"path": _PREFIX + file.path}) for file in listed]

    def path_below(self, artifact: str) -> str | None:
        """Return the path below `folder` of an artifact; None if it is none of the program's output."""
        path = artifact.removeprefix(_PREFIX)
        return path if path != artifact and is_output(path, self.paths) else None


def _paths(spec: Mapping[str, Any]) -> tuple[str, ...]:
    return output_paths(spec.get("keep", ()), start_folder(spec))


def _folder(files: UntrustedFiles, attempt: AttemptLayout) -> Path:
    """Return the working directory of an attempt, which has it alone until its program can start."""
    try:
        files.status(attempt.code)
    except OSError:
        return attempt.work
    return attempt.code


def newest_checkpoint(files: UntrustedFiles, attempt: AttemptLayout, spec: Mapping[str, Any]) -> float | None:
    """Return when a program last wrote a checkpoint, in seconds since 1970; None if it has none.

    Every file of the folder for checkpoints counts, and in the working directory every file that is a checkpoint by
    name.
    """
    checkpoints = files.walk(
        RunLayout(attempt.root.parent.parent).checkpoints, limit=_MAX_ENTRIES, enter=lambda _: True
    )
    times = [status.st_mtime for _, status in checkpoints]
    return max([*times, *_output_times(files, attempt, _paths(spec))], default=None)


def _output_times(files: UntrustedFiles, attempt: AttemptLayout, paths: tuple[str, ...]) -> Iterator[float]:
    folder = _folder(files, attempt)
    for path in paths:
        with suppress(OSError):
            status = files.status(folder / path)
            if stat.S_ISREG(status.st_mode) and is_checkpoint_file(path):
                yield status.st_mtime
        for name, status in files.walk(folder / path, limit=_MAX_ENTRIES, enter=lambda _: True):
            if is_checkpoint_file(name):
                yield status.st_mtime
