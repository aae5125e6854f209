"""From a resolved spec to the document of one attempt: the same for a submission and for a plan of one."""

import os
from pathlib import Path
from typing import Any

from service.cluster.placement import Place
from service.core.settings import Settings
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.launch import LaunchDocument

UNKNOWN_ACCELERATOR = (
    "Slurm has not told yet whether the partition has GPUs (sinfo); TRAINYARD_ACCELERATOR=cpu or cuda says so for all"
)


def launch_document(
    spec: TrainingSpec, settings: Settings, place: Place, *, slurm: bool, **attempt: Any
) -> LaunchDocument:
    """What a worker is told.

    Args:
        attempt: The fields that say which attempt it is.

    Raises:
        ValueError: nobody knows yet what the ranks will compute on.
    """
    if place.accelerator is None:
        raise ValueError(UNKNOWN_ACCELERATOR)
    ranks = ranks_per_node(spec)
    default_limit = settings.slurm_time_limit_minutes if slurm else None
    return LaunchDocument(
        service_url=settings.service_url,
        nodes=spec.gpus // ranks,
        ranks_per_node=ranks,
        accelerator=place.accelerator,
        host_suffix=settings.slurm_host_suffix,
        network_interface=settings.slurm_network_interface,
        time_limit_minutes=spec.resources.time_limit_minutes or default_limit,
        partition_limit_minutes=place.limit_minutes if slurm else None,
        lead_seconds=settings.slurm_signal_lead_seconds,
        spec=spec,
        **attempt,
    )


def ranks_per_node(spec: TrainingSpec) -> int:
    return min(spec.gpus, spec.resources.gpus_per_node or spec.gpus)


def source_tree() -> tuple[Path, ...]:
    """Where workers find our packages when they run from a source tree that is not installed."""
    root = Path(__file__).resolve().parents[2]
    return (root,) if str(root) in os.environ.get("PYTHONPATH", "").split(os.pathsep) else ()
