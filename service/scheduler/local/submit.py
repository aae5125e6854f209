"""The submitter: a short-lived child process that starts a queue entry with submitit's local executor.

It is a separate process in its own session because submitit copies its caller's environment into the job and starts
the job in its caller's session, where a Ctrl-C would reach it. It prints `{"pid": <submitit's controller>}`.
"""

import json
import os
import pkgutil
import signal
import sys
from pathlib import Path
from typing import Any

import submitit

LIMIT_SECONDS = 30
_UNLIMITED_MINUTES = 10 * 365 * 24 * 60
"""Disables submitit's own time limit (2 minutes by default); the worker enforces the job's."""


class ImportedCallable:
    """A function that is imported where it is called, so that the submitter need not import the worker."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __call__(self, folder: str) -> Any:
        return pkgutil.resolve_name(self._target)(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return pkgutil.resolve_name, (self._target,)


def main(entry_file: Path | None) -> None:
    """Start the entry stored in the file; None: on standard input, if it runs as another account than the service."""
    # This process inherits the queue's lock and holds it until it ends, so it must end in any case.
    signal.alarm(LIMIT_SECONDS)
    entry = json.loads(entry_file.read_text() if entry_file else sys.stdin.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # The job must not inherit the pipe to the service: stdout is reserved for the result.
    with os.fdopen(os.dup(1), "w") as result:
        os.dup2(2, 1)
        folder = Path(entry["folder"])
        executor = submitit.LocalExecutor(folder / "submitit")
        executor.update_parameters(
            timeout_min=_UNLIMITED_MINUTES, gpus_per_node=len(entry["gpus"]), stderr_to_stdout=True
        )
        # update_parameters() accepts only numbers, but the value is joined to a list that may have UUIDs.
        executor.parameters["visible_gpus"] = entry["gpus"]
        job = executor.submit(ImportedCallable(entry["target"]), str(folder))
        json.dump({"pid": int(job.job_id)}, result)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
