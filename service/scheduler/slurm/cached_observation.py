"""The last observation of an attempt."""

from dataclasses import dataclass

from service.scheduler.base import Observation, SubmittedJob


@dataclass(frozen=True)
class CachedObservation:
    """The last observation of an attempt, for one scheduler id; another job may claim the attempt later."""

    scheduler_id: str
    """Empty: valid for every id."""
    observation: Observation | None
    """None: nothing was learned."""

    def for_job(self, job: SubmittedJob) -> Observation | None:
        """The observation, if it is about this job's scheduler id."""
        return self.observation if self.scheduler_id in ("", job.scheduler_id) else None
