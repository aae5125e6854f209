"""Facts about the schedulers beyond their calls, so that no other module branches on the scheduler's name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from service.core.settings import Settings
from service.scheduler.base import SUBMITTER_MARGIN_SECONDS, LaunchPlan
from service.scheduler.slurm.batch_script import batch_script
from service.scheduler.slurm.dialect import Dialect
from trainyard.contract.wire.launch import LaunchDocument


@dataclass(frozen=True)
class AbsencePolicy:
    """How many lookups prove that the scheduler does not have an attempt."""

    min_lookups: int = 1
    min_wait: timedelta = timedelta(0)
    """The least time between the last call of the scheduler and the proof."""
    interval: timedelta = timedelta(0)
    """The time between two lookups; two lookups at once would prove no more than a single lookup."""
    call_timeout: timedelta = timedelta(0)
    """The longest time that a call of the scheduler can take, in a child that outlives a killed service."""


@dataclass(frozen=True)
class Backend:
    """The facts about a scheduler. The defaults describe the local queue, which the service reads under a lock."""

    title: str
    heartbeat_seconds: int = 2
    """How often workers report. The local backend runs few jobs, so its workers can notice a pause sooner."""
    settle_seconds: int = 0
    """How long a launcher waits for the end of the launchers of earlier attempts."""
    cluster_interval: timedelta = timedelta(seconds=5)
    """The least time between two queries of the cluster."""
    is_slow: bool = False
    """Whether its calls may take minutes, and it is polled less often while nothing happens."""
    names_entries: bool = False
    """Whether it gives ids to entries of its queue, which the claims of workers have."""
    has_limits: bool = False
    """Whether it has partitions with limits and hardware of their own."""
    inherited: tuple[str, ...] = ("CUDA_*", "NCCL_*", "TMPDIR", "VIRTUAL_ENV")
    """Variables that jobs inherit because they run where the service runs: they choose GPUs, describe the hardware of
    this machine, and name folders on it. On the nodes of a cluster they would be wrong."""
    absence_policy: Callable[[Settings], AbsencePolicy] = lambda settings: AbsencePolicy()
    render_script: Callable[[Settings, LaunchDocument, LaunchPlan], str] = lambda settings, document, plan: plan.script
    """Return the script of an attempt. ValueError: a value may not appear in it."""


def _slurm_absence_policy(settings: Settings) -> AbsencePolicy:
    # sbatch may retry by itself for two minutes, and slurmctld may list a job late.
    confirm_absence = timedelta(seconds=settings.slurm_confirm_absence_seconds)
    call_timeout = timedelta(seconds=settings.slurm_submit_timeout_seconds + SUBMITTER_MARGIN_SECONDS)
    return AbsencePolicy(3, confirm_absence, confirm_absence / 3, call_timeout)


def _slurm_script(settings: Settings, document: LaunchDocument, plan: LaunchPlan) -> str:
    return batch_script(document, plan, dialect=Dialect.of(settings))


BACKENDS: Mapping[str, Backend] = {
    "local": Backend("this machine"),
    "slurm": Backend(
        "Slurm",
        heartbeat_seconds=10,
        # Launchers check every five seconds whether their attempt was superseded; a shared filesystem may cache the
        # answer for a few seconds more.
        settle_seconds=15,
        cluster_interval=timedelta(seconds=60),
        is_slow=True,
        names_entries=True,
        has_limits=True,
        inherited=(),
        absence_policy=_slurm_absence_policy,
        render_script=_slurm_script,
    ),
}


def names_entries(scheduler: str) -> bool:
    """Return whether the scheduler of an attempt, maybe of a former release, gives ids to entries of its queue."""
    return scheduler in BACKENDS and BACKENDS[scheduler].names_entries
