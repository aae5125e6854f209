"""Resource requests that the Slurm cluster can never satisfy, checked before a submission. Pure functions.

Only a mismatch that waiting cannot change is a problem: nodes count in any state. Accounts and QOS are checked if Slurm
enforces them. Limits that the snapshot does not show, such as limits that a QOS lifts, are left to Slurm.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from difflib import get_close_matches

from service.core.settings import Settings
from service.scheduler.backends import BACKENDS
from service.scheduler.launch_document import ranks_per_node
from service.scheduler.slurm.dialect import Dialect
from service.specs.acceptance import AcceptedSpec
from trainyard.contract.problems import Problem
from trainyard.contract.spec.sections import Resources
from trainyard.contract.wire.cluster import ClusterResource, PartitionResource

STALE = timedelta(minutes=5)
"""A spec is never rejected because of an older snapshot."""


def is_stale(cluster: ClusterResource) -> bool:
    """Return whether the snapshot is missing or too old to reject a spec."""
    return cluster.age_seconds is None or cluster.age_seconds > STALE.total_seconds()


def unavailable_resources(settings: Settings, accepted: AcceptedSpec) -> list[Problem]:
    """Return every resource of an accepted spec that the Slurm cluster can never provide, or that has no effect."""
    if not BACKENDS[settings.backend].has_limits:
        return []
    spec, ranks = accepted.spec, ranks_per_node(accepted.spec)
    ineffective = Dialect.of(settings).problems(spec.resources)
    if ineffective or not settings.slurm_preflight:
        return ineffective
    minutes = spec.resources.time_limit_minutes or settings.slurm_time_limit_minutes
    gpus_per_node = ranks if accepted.site.accelerator == "cuda" else 0
    return resource_problems(spec.resources, spec.gpus // ranks, gpus_per_node, minutes, accepted.cluster)


def resource_problems(
    resources: Resources, nodes: int, gpus_per_node: int, time_limit_minutes: int | None, cluster: ClusterResource
) -> list[Problem]:
    """Return a problem for each field that requests more than the cluster has.

    Args:
        gpus_per_node: 0 if the ranks use no GPUs.
        time_limit_minutes: The spec's limit, or the default of the service.
    """
    if is_stale(cluster):
        return []
    account = _account_problem(resources, cluster)
    others = _partition_problems(resources, nodes, gpus_per_node, time_limit_minutes, cluster)
    return [*([account] if account else []), *others]


def _account_problem(resources: Resources, cluster: ClusterResource) -> Problem | None:
    """Return a problem for an unknown account, or a QOS that the account (by default, any account) does not have."""
    name, qos = resources.account, resources.qos
    if not cluster.accounts:
        # No accounts at all: probably accounting is not set up for this service yet.
        return None
    names = {account.name.lower() for account in cluster.accounts}
    if name is not None and "account" in cluster.enforced and name.lower() not in names:
        known = ", ".join(f"{one.name} (default)" if one.default else one.name for one in cluster.accounts)
        message = f"the service may not use account `{name}`{_suggestion(name, names)}; available: {known}"
        return Problem(param="resources.account", message=message)
    mine = [account for account in cluster.accounts if name is None or account.name.lower() == name.lower()]
    known_qos = sorted({one for account in mine for one in account.qos})
    if qos is not None and "qos" in cluster.enforced and known_qos and qos.lower() not in known_qos:
        where = f"account {name}" if name else "the service's accounts"
        message = f"{where} may not use QOS `{qos}`{_suggestion(qos, known_qos)}; available: {', '.join(known_qos)}"
        return Problem(param="resources.qos", message=message)
    return None


def _suggestion(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), n=1)
    return f" (did you mean `{near[0]}`?)" if near else ""


def _partition_problems(
    resources: Resources, nodes: int, gpus_per_node: int, time_limit_minutes: int | None, cluster: ClusterResource
) -> list[Problem]:
    """Return the problems with partitions, GPUs, time limit and nodes."""
    if not cluster.partitions:
        return []
    names = resources.partition.split(",") if resources.partition else [p.name for p in cluster.partitions if p.default]
    known = {partition.name: partition for partition in cluster.partitions}
    if missing := [name for name in names if name not in known]:
        return [Problem(param="resources.partition", message=_no_partition(missing[0], cluster.partitions))]
    partitions = [known[name] for name in names]
    if not partitions:
        # Without a default partition, a plugin of the site may choose a partition.
        return []
    problems = [
        _gpu_problem(resources, nodes, gpus_per_node, partitions) if gpus_per_node else None,
        # A QOS may lift the limits of the partition.
        None if resources.qos else _time_problem(time_limit_minutes, partitions),
        None if resources.qos else _node_problem(nodes, partitions),
    ]
    return [problem for problem in problems if problem is not None]


def _no_partition(name: str, partitions: Sequence[PartitionResource]) -> str:
    names = [partition.name for partition in partitions]
    shown = ", ".join(
        f"{partition.name} (default)" if partition.default else partition.name for partition in partitions
    )
    return f"there is no partition `{name}`{_suggestion(name, names)}; this cluster has: {shown}"


def _time_problem(minutes: int | None, partitions: Sequence[PartitionResource]) -> Problem | None:
    limits = [partition.time_limit_minutes for partition in partitions]
    allowed = [limit for limit in limits if limit is not None]
    if minutes is None or len(allowed) < len(limits) or minutes <= max(allowed):
        return None
    where = _partition_names(partitions)
    message = f"{minutes} exceeds the limit of {where}, {max(allowed)}; a job continues in a new attempt after it"
    return Problem(param="resources.time_limit_minutes", message=message)


def _node_problem(nodes: int, partitions: Sequence[PartitionResource]) -> Problem | None:
    most = max(min(_nodes(partition), partition.max_nodes or nodes) for partition in partitions)
    if nodes <= most:
        return None
    message = (
        f"requests {nodes} nodes, but a job in {_partition_names(partitions)} can have {most}; lower gpus or raise this"
    )
    return Problem(param="resources.gpus_per_node", message=message)


def _gpu_problem(
    resources: Resources, nodes: int, per_node: int, partitions: Sequence[PartitionResource]
) -> Problem | None:
    where, gpu_type = _partition_names(partitions), resources.gpu_type
    types = sorted({type_ for partition in partitions for shape in partition.shapes for type_ in shape.gpus})
    if not types:
        return Problem(param="resources.partition", message=f"{where} has no GPUs; use a partition that has")
    if gpu_type is not None and gpu_type not in types:
        known = ", ".join(type_ for type_ in types if type_) or "GPUs without a type; omit gpu_type"
        return Problem(param="resources.gpu_type", message=f"{where} has no `{gpu_type}` GPUs; it has: {known}")
    most = max(_count(shape.gpus, gpu_type) for partition in partitions for shape in partition.shapes)
    named = f"`{gpu_type}` GPUs" if gpu_type else "GPUs"
    if per_node > most:
        message = f"requests {per_node} {named} per node, but the nodes of {where} have at most {most}"
        return Problem(param="resources.gpus_per_node", message=message)
    fit = max(_fitting(partition, per_node, gpu_type) for partition in partitions)
    if nodes > fit:
        message = f"requests {nodes} nodes with {per_node} {named} each, but {where} has {fit}"
        return Problem(param="gpus", message=message)
    return None


def _fitting(partition: PartitionResource, per_node: int, gpu_type: str | None) -> int:
    return sum(shape.nodes for shape in partition.shapes if _count(shape.gpus, gpu_type) >= per_node)


def _count(gpus: dict[str, int], gpu_type: str | None) -> int:
    return sum(gpus.values()) if gpu_type is None else gpus.get(gpu_type, 0)


def _nodes(partition: PartitionResource) -> int:
    return sum(partition.nodes.values())


def _partition_names(partitions: Sequence[PartitionResource]) -> str:
    return f"partition {' or '.join(partition.name for partition in partitions)}"
