"""The submitter: a short-lived child process that submits one attempt through submitit and reports sbatch's output.

It is a separate process because sbatch copies its caller's environment into the job, may take minutes, and must be
killed at its time limit. It prints `{"returncode", "stdout", "stderr"}`; the caller interprets them.
"""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from submitit import SlurmExecutor
from submitit.core.utils import DelayedSubmission, FailedSubmissionError

from service.scheduler.local.submit import ImportedCallable
from trainyard.contract.layout import AttemptLayout


class PlannedExecutor(SlurmExecutor):
    """submitit's executor with a prepared script, and with sbatch's complete output."""

    def __init__(self, folder: Path, script: str, nodes: int, limit_seconds: float) -> None:
        super().__init__(folder)
        self._script = script
        self._nodes = nodes
        self._limit_seconds = limit_seconds
        self.result: dict[str, Any] = {}

    def _num_tasks(self) -> int:
        return self._nodes

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script

    def _submit_command(self, command: str) -> Any:
        """Run sbatch and return the job whose id it printed, even if its exit status is not 0.

        Raises:
            FailedSubmissionError: sbatch printed no job id.
        """
        file = Path(self.folder) / "batch.sh"
        file.write_text(self._make_submission_file_text(command, ""))
        done = subprocess.run(
            self._make_submission_command(file),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=self._limit_seconds,
            check=False,
        )
        stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        self.result = {"returncode": done.returncode, "stdout": stdout, "stderr": stderr}
        job_id = self._get_job_id_from_submission_command(stdout)
        job = self.job_class(folder=self.folder, job_id=job_id, tasks=list(range(self._num_tasks())))
        job.paths.move_temporary_file(file, "submission_file", keep_as_symlink=True)
        return job


def main(request_file: Path) -> None:
    """Submit the attempt that the request file describes, and print sbatch's output as JSON."""
    request = json.loads(request_file.read_text())
    limit = request["limit_seconds"]
    # This process ends itself before the caller would kill it.
    signal.alarm(math.ceil(limit) + 5)
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        folder = Path(request["folder"])
        AttemptLayout(folder).submitit.mkdir(exist_ok=True)
        call = ImportedCallable(request["target"]), str(folder)
        _write_call(folder, *call)
        executor = PlannedExecutor(AttemptLayout(folder).submitit, request["script"], request["nodes"], limit)
        try:
            executor.submit(*call)
        except FailedSubmissionError:
            print("sbatch printed no job id", file=sys.stderr)
        finally:
            json.dump(executor.result, out)


def _write_call(folder: Path, function: ImportedCallable, argument: str) -> None:
    """Write the pickled call to the attempt's folder, so that the job can start even if this process dies before
    submitit has renamed its own copy."""
    delayed = DelayedSubmission(function, argument)
    delayed.set_timeout(0, 0)
    delayed.dump(AttemptLayout(folder).pickled_call)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
