"""The submitter: a short-lived child in a session of its own that hands one queue entry to submitit's local executor.

A process of its own, because submitit copies its caller's whole environment into the job and starts the job in its
caller's session, where a Ctrl-C would reach it. It prints `{"pid": <submitit's controller>}`.
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
_NEVER_MINUTES = 10 * 365 * 24 * 60
"""submitit's own time limit (2 minutes unless told) must not bite: the worker keeps the job's."""


class ByName:
    """A function that is looked up where it is called, so that the submitter need not import the worker."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __call__(self, folder: str) -> Any:
        return pkgutil.resolve_name(self._target)(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return pkgutil.resolve_name, (self._target,)


def main(entry_file: Path) -> None:
    """Start the job of one entry."""
    # The queue's lock is inherited and held until this process ends: it must end, whatever happens.
    signal.alarm(LIMIT_SECONDS)
    entry = json.loads(entry_file.read_text())
    # The job must not hold the pipe to the service: stdout is kept for the answer and closed for all others.
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        folder = Path(entry["folder"])
        executor = submitit.LocalExecutor(folder / "submitit")
        executor.update_parameters(
            timeout_min=_NEVER_MINUTES,
            gpus_per_node=len(entry["gpus"]),
            visible_gpus=entry["gpus"],
            stderr_to_stdout=True,
        )
        job = executor.submit(ByName(entry["target"]), str(folder))
        json.dump({"pid": int(job.job_id)}, answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
