"""What the settings and the snapshot say of the place where a job will run: its accelerator and its time limit."""

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.orm import Session

from service.api.dependencies import AppState
from service.cluster.repository import ClusterRepository
from service.core.settings import Accelerator, Settings
from trainyard.contract.spec.sections import Resources
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.cluster import ClusterResource, PartitionResource


@dataclass(frozen=True)
class Place:
    """Where a job will run."""

    accelerator: Accelerator | None
    """None: the scheduler has not told yet what there is."""
    limit_minutes: int | None = None
    """What its partition gives to a job that names no limit; None: none, or not known."""


def place_of(settings: Settings, resources: Resources, cluster: ClusterResource) -> Place:
    """By a snapshot, however old: whether a partition has GPUs, and its limits, hardly ever change. Pure."""
    return Place(settings.known_accelerator or _accelerator(resources, cluster), _limit(resources, cluster))


def find_place(session: Session, settings: Settings, resources: Resources, now: datetime) -> Place:
    """By the newest snapshot."""
    return place_of(settings, resources, ClusterRepository(session).resource(settings.backend, now))


def site_of(services: AppState, spec: TrainingSpec, now: datetime) -> Site:
    """What an `auto` of this spec depends on."""
    site = services.settings.site
    if site.accelerator is not None:
        return site
    with services.database.read() as session:
        return replace(site, accelerator=find_place(session, services.settings, spec.resources, now).accelerator)


def _accelerator(resources: Resources, cluster: ClusterResource) -> Accelerator | None:
    """`cuda` where the wanted partitions, or the default one, have GPUs, or one is asked for by its type."""
    if resources.gpu_type is not None:
        return "cuda"
    if cluster.taken_at is None:
        return None
    return "cuda" if any(shape.gpus for one in _wanted(resources, cluster) for shape in one.shapes) else "cpu"


def _limit(resources: Resources, cluster: ClusterResource) -> int | None:
    """The shortest of the partitions that may take it. A qos may have a limit of its own, which is not known here."""
    if resources.qos is not None:
        return None
    limits = (one.default_time_minutes or one.time_limit_minutes for one in _wanted(resources, cluster))
    return min((limit for limit in limits if limit), default=None)


def _wanted(resources: Resources, cluster: ClusterResource) -> list[PartitionResource]:
    """Where the job may run. Without a default, or by a name that is not known, a plugin of the site may choose any."""
    names = resources.partition.split(",") if resources.partition else []
    found = [one for one in cluster.partitions if (one.name in names if names else one.default)]
    return found or list(cluster.partitions)
