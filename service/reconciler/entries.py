"""What a tick loads of a job."""

from dataclasses import dataclass

from service.db.models import Attempt, Job
from service.jobs.states import ACTIVE


@dataclass(frozen=True)
class JobEntry:
    """An unfinished job and its current attempt."""

    job: Job
    attempt: Attempt | None

    @property
    def is_stopping(self) -> bool:
        """Whether the service has been requested to end the attempt."""
        is_requested = self.job.desired != "run" or self.job.status in ("cancelling", "pausing")
        return self.job.status in ACTIVE and is_requested

    @property
    def log_context(self) -> dict[str, str | None]:
        """The fields of every log line about the job."""
        attempt = self.attempt
        fields = {"attempt": attempt.id, "scheduler_id": attempt.scheduler_id} if attempt else {}
        return {"job": self.job.id} | fields
