"""Quotas on a user's jobs. Pure functions."""

from dataclasses import dataclass

from service.core.errors import ConflictError, InvalidSpecError, QuotaExceededError
from trainyard.contract.problems import Problem
from trainyard.contract.sizes import format_size
from trainyard.contract.spec.training_spec import TrainingSpec


@dataclass(frozen=True)
class UserQuotas:
    """The quotas of a user; None: no limit."""

    gpus: int | None = None
    """GPUs that the scheduler may hold at once for jobs submitted with the roles user and viewer."""
    admin_gpus: int | None = None
    """The same for jobs submitted with the role admin."""
    queued: int | None = None
    """Jobs with the status `queued`."""
    disk_bytes: int | None = None
    """Size of all run directories; new jobs are refused above it."""

    @property
    def limits_gpus(self) -> bool:
        """Whether there is a GPU quota for any role."""
        return self.gpus is not None or self.admin_gpus is not None

    def gpu_quota(self, role: str | None) -> int | None:
        """The GPU quota of jobs that were submitted with this role."""
        return self.admin_gpus if role == "admin" else self.gpus


NO_QUOTAS = UserQuotas()


def check_gpu_quota(quotas: UserQuotas, role: str | None, spec: TrainingSpec) -> None:
    """Raises InvalidSpecError: the job alone exceeds the GPU quota and could never start."""
    limit = quotas.gpu_quota(role)
    if limit is not None and spec.gpus > limit:
        message = f"is {spec.gpus}, more than the quota of {limit} GPUs per user"
        raise InvalidSpecError([Problem(param="gpus", message=message)])


def check_queue_quota(quotas: UserQuotas, user: str, queued: int, count: int = 1) -> None:
    """Raises ConflictError: `count` more queued jobs would exceed the user's quota."""
    if quotas.queued is not None and queued + count > quotas.queued:
        more = f"{count} more jobs do not fit; " if count > 1 else ""
        raise ConflictError(
            f"{user} has {queued} queued {'job' if queued == 1 else 'jobs'}; the quota is {quotas.queued} per user: "
            f"{more}cancel some, or submit again after they have started",
            code="too_many_queued",
        )


def check_disk_quota(quotas: UserQuotas, user: str, used: int) -> None:
    """Raises QuotaExceededError: the run directories of the user's jobs already hold the quota, in bytes."""
    if quotas.disk_bytes is not None and used >= quotas.disk_bytes:
        raise QuotaExceededError(
            f"the jobs of {user} use {format_size(used)} of disk space, and the quota is "
            f"{format_size(quotas.disk_bytes)} per user; delete some (`trainyard delete JOB`, or only their "
            "`--checkpoints`)"
        )
