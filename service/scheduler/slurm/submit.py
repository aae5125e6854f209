"""The submitter: a short-lived process that submits an attempt through submitit and reports sbatch's output.

It is a process of its own because sbatch copies its caller's environment into the job, may take minutes, and must be
killed at its time limit. It returns `{"returncode", "stdout", "stderr"}`; the caller interprets them.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from submitit import SlurmExecutor
from submitit.core.utils import DelayedSubmission, FailedSubmissionError

from service.scheduler.local.submit import ImportedCallable
from trainyard.contract.layout import AttemptLayout, write_atomic

ANSWER_FILE = "sbatch.json"
"""In the folder of submitit: the submission for which sbatch was called last, and its answer if it has come."""


class PlannedExecutor(SlurmExecutor):
    """submitit's executor with a prepared script, and with sbatch's complete output."""

    def __init__(self, folder: Path, script: str, nodes: int, limit_seconds: float, submission: str) -> None:
        super().__init__(folder)
        self._submission = submission
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
        self._record()
        done = subprocess.run(
            self._make_submission_command(file),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=self._limit_seconds,
            check=False,
        )
        stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        self.result = {"returncode": done.returncode, "stdout": stdout, "stderr": stderr}
        self._record()
        # submitit takes the first number after the word `job`, which a plug-in of the site may print too.
        answers = [line for line in stdout.splitlines() if line.startswith("Submitted batch job ")]
        job_id = self._get_job_id_from_submission_command("\n".join(answers))
        job = self.job_class(folder=self.folder, job_id=job_id, tasks=list(range(self._num_tasks())))
        job.paths.move_temporary_file(file, "submission_file", keep_as_symlink=True)
        return job

    def _record(self) -> None:
        """Write that sbatch is called, and then its answer: the service may end before it has read the answer."""
        write_atomic(Path(self.folder) / ANSWER_FILE, json.dumps({"submission": self._submission, **self.result}))


def submit(request: Mapping[str, Any], executor: PlannedExecutor) -> None:
    """Submit the attempt that the request describes; the executor then has sbatch's output as `result`."""
    folder = request["folder"]
    call = ImportedCallable(request["target"]), folder
    _write_call(Path(folder), *call)
    try:
        executor.submit(*call)
    except FailedSubmissionError:
        print("sbatch printed no job id", file=sys.stderr)


def submit_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Submit the attempt that the request describes, and return sbatch's output, as far as there is any."""
    executor = planned_executor(request)
    try:
        submit(request, executor)
    except Exception as error:
        # sbatch may have been called.
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return executor.result


def planned_executor(request: Mapping[str, Any]) -> PlannedExecutor:
    """The executor of a request."""
    folder = AttemptLayout(Path(request["folder"])).submitit
    return PlannedExecutor(folder, request["script"], request["nodes"], request["limit_seconds"], request["submission"])


def _write_call(folder: Path, function: ImportedCallable, argument: str) -> None:
    """Write the pickled call to the attempt's folder, so that the job can start even if this process dies before
    submitit has renamed its own copy."""
    delayed = DelayedSubmission(function, argument)
    delayed.set_timeout(0, 0)
    delayed.dump(AttemptLayout(folder).pickled_call)
