"""From a resolved spec to the launch document of an attempt, for a submission or a plan."""

import os
from pathlib import Path
from typing import Any

from service.core.settings import Accelerator, Settings
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.launch import LaunchDocument

MSG_UNKNOWN_ACCELERATOR = (
    "Slurm has not reported yet whether the partition has GPUs (sinfo). Set TRAINYARD_ACCELERATOR to cpu or cuda to "
    "define it for all partitions."
)


def launch_document(
    spec: TrainingSpec,
    settings: Settings,
    *,
    accelerator: Accelerator | None,
    partition_limit_minutes: int | None,
    has_limits: bool,
    **attempt: Any,
) -> LaunchDocument:
    """The launch document of an attempt.

    Args:
        accelerator: The accelerator of the ranks; None while it is unknown.
        partition_limit_minutes: The time limit of the partition.
        has_limits: `Backend.has_limits`.
        attempt: The fields that identify the attempt.

    Raises:
        ValueError: the accelerator is unknown.
    """
    if accelerator is None:
        raise ValueError(MSG_UNKNOWN_ACCELERATOR)
    ranks = ranks_per_node(spec)
    default_limit = settings.slurm_time_limit_minutes if has_limits else None
    return LaunchDocument(
        service_url=settings.url_for_workers,
        public_url=settings.service_url,
        nodes=spec.gpus // ranks,
        ranks_per_node=ranks,
        accelerator=accelerator,
        host_suffix=settings.slurm_host_suffix,
        network_interface=settings.slurm_network_interface,
        time_limit_minutes=spec.resources.time_limit_minutes or default_limit,
        partition_limit_minutes=partition_limit_minutes if has_limits else None,
        site_setup=str(settings.site_setup or ""),
        modules_init=str(settings.modules_init or ""),
        umask=settings.umask,
        roots=settings.site.allowed_roots,
        container_runtime=settings.container_runtime,
        lead_seconds=settings.slurm_signal_lead_seconds,
        spec=spec,
        **attempt,
    )


def ranks_per_node(spec: TrainingSpec) -> int:
    """The ranks on each node: `resources.gpus_per_node`, or all of them on a single node."""
    return min(spec.gpus, spec.resources.gpus_per_node or spec.gpus)


def source_tree() -> tuple[Path, ...]:
    """The folder to add to the worker's PYTHONPATH if the service runs from a source tree; empty if installed."""
    root = Path(__file__).resolve().parents[2]
    return (root,) if str(root) in os.environ.get("PYTHONPATH", "").split(os.pathsep) else ()
