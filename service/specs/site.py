"""The site of a spec: the accelerator, limits and roots that the settings and a cluster snapshot imply. Pure
functions."""

from dataclasses import replace

from service.core.settings import Accelerator, Settings
from trainyard.contract.spec.sections import Resources
from trainyard.contract.spec.site import Site
from trainyard.contract.wire.cluster import ClusterResource, PartitionResource


def site_of(settings: Settings, resources: Resources, cluster: ClusterResource) -> Site:
    """Return the site of a spec with these resources.

    The age of the snapshot does not matter here: a partition's GPUs and limits hardly ever change.
    """
    site = settings.site
    return replace(
        site,
        accelerator=site.accelerator or _accelerator(resources, cluster),
        partition_limit_minutes=_partition_limit(resources, cluster),
    )


def _accelerator(resources: Resources, cluster: ClusterResource) -> Accelerator | None:
    """Return `cuda` if the spec names a GPU type or its partitions have GPUs; None before the first snapshot."""
    if resources.gpu_type is not None:
        return "cuda"
    if cluster.taken_at is None:
        return None
    has_gpus = any(shape.gpus for partition in _partitions(resources, cluster) for shape in partition.shapes)
    return "cuda" if has_gpus else "cpu"


def _partition_limit(resources: Resources, cluster: ClusterResource) -> int | None:
    """Return the shortest time limit of the partitions. None with a QOS, whose own limit is not known here."""
    if resources.qos is not None:
        return None
    limits = (
        partition.default_time_minutes or partition.time_limit_minutes for partition in _partitions(resources, cluster)
    )
    return min((limit for limit in limits if limit), default=None)


def _partitions(resources: Resources, cluster: ClusterResource) -> list[PartitionResource]:
    """Return the partitions where the job may run: the named partitions, else the default.

    If there is no such partition, a plugin of the site may choose any, so all are returned.
    """
    names = resources.partition.split(",") if resources.partition else []
    matching = [one for one in cluster.partitions if (one.name in names if names else one.default)]
    return matching or list(cluster.partitions)


def partition_names(resources: Resources, cluster: ClusterResource) -> set[str]:
    """Return the names of the partitions where a job with these resources may run."""
    return {partition.name for partition in _partitions(resources, cluster)}
