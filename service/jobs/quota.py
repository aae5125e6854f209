"""What one person's jobs may be and have at once. Pure."""

from dataclasses import dataclass

from service.core.errors import ConflictError, InvalidSpecError
from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import TrainingSpec


@dataclass(frozen=True)
class UserQuotas:
    """None is no limit."""

    gpus: int | None = None
    """At the scheduler at once."""
    admin_gpus: int | None = None
    """The same for jobs that were submitted with an administrator's token."""
    queued: int | None = None
    """Jobs that wait to be handed to the scheduler."""

    @property
    def limits_gpus(self) -> bool:
        """Whether anybody's running jobs are limited."""
        return self.gpus is not None or self.admin_gpus is not None

    def gpu_quota(self, role: str | None) -> int | None:
        return self.admin_gpus if role == "admin" else self.gpus


NO_QUOTAS = UserQuotas()


def check_gpu_quota(limits: UserQuotas, role: str | None, spec: TrainingSpec) -> None:
    """Raises InvalidSpecError: the job alone is more than a person's share, so that it would wait for ever."""
    limit = limits.gpu_quota(role)
    if limit is not None and spec.gpus > limit:
        message = f"is {spec.gpus}, more than the {limit} GPUs that one person's jobs may have at once"
        raise InvalidSpecError([Problem(param="gpus", message=message)])


def check_queue_quota(limits: UserQuotas, user: str, queued: int, count: int = 1) -> None:
    """Raises ConflictError: so many more than the person's jobs that wait already are too many."""
    if limits.queued is not None and queued + count > limits.queued:
        wait = "job of {} waits" if queued == 1 else "jobs of {} wait"
        more = f"there is no room for {count} more: " if count > 1 else ""
        raise ConflictError(
            f"{queued} {wait.format(user)} in the queue, and {limits.queued} is what one person's may; {more}cancel "
            "some, or submit more when they have started",
            code="too_many_queued",
        )
