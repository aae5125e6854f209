"""What is known of an attempt when its fate is decided: gathered here, judged in `decide`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.api.dependencies import Services
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.reconciler.decide import Facts
from service.reconciler.run_dir import Unclaimed, read_unclaimed
from service.reconciler.submission.submitter import newest_step
from service.scheduler.base import Observation
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.reports import FinishRecord

_HEARD = timedelta(seconds=30)
"""A worker beats every ten seconds."""


@dataclass(frozen=True)
class FactFinder:
    """Gathers them."""

    services: Services
    watching_since: datetime
    """Since when this process looks on."""

    def of(
        self, job: Job, attempt: Attempt, seen: Observation | None, finish: FinishRecord | None, *, over: bool
    ) -> Facts:
        """Facts for `decide`; `over`: the scheduler has no such job any more."""
        retries_left, barren, on_time_limit = 0, 0, "continue"
        former: tuple[str, ...] = ()
        if over:
            # Points drained a moment ago may have brought a checkpoint that the loaded row does not know.
            with self.services.database.read() as session:
                jobs = JobRepository(session, self.services.clock())
                fresh = jobs.get(job.id)
                barren = continuations_without_progress(fresh, attempt)
                former = _reasons_before(jobs.list_attempts(fresh), attempt, barren - 1)
                used = fresh.retries_used + restarts(jobs, attempt, finish)
            restart = parse_spec(fresh.spec).restart
            retries_left = restart.max_retries - used
            on_time_limit = restart.on_time_limit
        return Facts(
            status=job.status,  # type: ignore[arg-type]
            desired=job.desired,  # type: ignore[arg-type]
            claimed=attempt.claimed_at is not None,
            unclaimed=self._unclaimed(job, attempt, seen, over=over),
            observation=seen,
            finish=finish,
            retries_left=retries_left,
            barren=barren,
            on_time_limit=on_time_limit,  # type: ignore[arg-type]
            said=job.status_message,
            former=former,
            claimed_seconds=_since(attempt.claimed_at, self.services.clock()),
            silent_seconds=_silence(attempt, self.watching_since, self.services.clock()),
            heard=self.hears(attempt),
            pause_seconds=self._pause_seconds(job),
            pause_patience=self.services.settings.pause_timeout_seconds,
        )

    def hears(self, attempt: Attempt) -> bool:
        """Whether its worker has beaten a moment ago: evidence of life, whatever the scheduler knows."""
        return attempt.heartbeat_at is not None and self.services.clock() - attempt.heartbeat_at < _HEARD

    def _unclaimed(self, job: Job, attempt: Attempt, seen: Observation | None, *, over: bool) -> Unclaimed:
        """The folders of thousands that wait are left alone."""
        if attempt.claimed_at is not None or seen is None or seen.state == "pending":
            return Unclaimed()
        return read_unclaimed(self.services.run(job.id).attempt(attempt.number), over=over)

    def _pause_seconds(self, job: Job) -> float:
        """Since the worker could first hear of the pause: not while this service was away."""
        now = self.services.clock()
        asked = max(job.pause_requested_at or now, self.watching_since)
        return max(0.0, (now - asked).total_seconds())


def restarts(jobs: JobRepository, attempt: Attempt, finish: FinishRecord | None) -> int:
    """In place: errors of the program, whether or not its launcher lived to count them."""
    return finish.restarts if finish is not None else jobs.count_restarts(attempt)


def continuations_without_progress(job: Job, attempt: Attempt) -> int:
    """Continuations in a row without a newer checkpoint, this attempt included."""
    return 0 if newest_step(job) != attempt.checkpoint_step else job.continuations_without_progress + 1


def _reasons_before(attempts: Sequence[Attempt], current: Attempt, count: int) -> tuple[str, ...]:
    """How the last attempts before the current one ended."""
    before = [one.exit_reason or "node_failure" for one in attempts if one.number < current.number]
    return tuple(before[len(before) - count :]) if count > 0 else ()


def _since(moment: datetime | None, now: datetime) -> float:
    return 0.0 if moment is None else (now - moment).total_seconds()


def _silence(attempt: Attempt, watching_since: datetime, now: datetime) -> float:
    """While this service was away nobody could hear anything."""
    signs = [at for at in (attempt.submitted_at, attempt.claimed_at, attempt.heartbeat_at) if at is not None]
    return (now - max([*signs, watching_since])).total_seconds()
