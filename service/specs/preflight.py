"""What of a spec this cluster can never give, found before anything is submitted. Pure.

Only what no waiting would change is refused: nodes count whatever their state. Accounts and qos are refused where Slurm
enforces them. What the snapshot does not tell (what a qos lifts) is left to Slurm, whose refusal is told in the job.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from difflib import get_close_matches

from trainyard.contract.problems import Problem
from trainyard.contract.spec.sections import Resources
from trainyard.contract.wire.cluster import ClusterResource, PartitionResource

STALE = timedelta(minutes=5)
"""An older snapshot refuses nothing."""


def refusals(
    resources: Resources, nodes: int, gpus_per_node: int, time_limit_minutes: int | None, cluster: ClusterResource
) -> list[Problem]:
    """Every field that asks for more than there is.

    Args:
        gpus_per_node: 0 where the ranks use none.
        time_limit_minutes: the spec's, or the service's default.
    """
    if cluster.age_seconds is None or cluster.age_seconds > STALE.total_seconds():
        return []
    account = _account_problem(resources, cluster)
    places = _place_problems(resources, nodes, gpus_per_node, time_limit_minutes, cluster)
    return [*([account] if account else []), *places]


def _account_problem(resources: Resources, cluster: ClusterResource) -> Problem | None:
    """An unknown account, or a qos that the account (by default, any of them) does not have."""
    name, qos = resources.account, resources.qos
    if not cluster.accounts:
        # None at all is more likely an accounting that is not set up for this account yet than a rule.
        return None
    names = {account.name.lower() for account in cluster.accounts}
    if name is not None and "account" in cluster.enforced and name.lower() not in names:
        known = ", ".join(f"{one.name} (default)" if one.default else one.name for one in cluster.accounts)
        message = f"this service may not use an account `{name}`{_meant(name, names)}; it may use: {known}"
        return Problem(param="resources.account", message=message)
    mine = [account for account in cluster.accounts if name is None or account.name.lower() == name.lower()]
    known_qos = sorted({one for account in mine for one in account.qos})
    if qos is not None and "qos" in cluster.enforced and known_qos and qos.lower() not in known_qos:
        where = f"account {name}" if name else "the service's accounts"
        message = f"{where} may not use a qos `{qos}`{_meant(qos, known_qos)}; there is: {', '.join(known_qos)}"
        return Problem(param="resources.qos", message=message)
    return None


def _meant(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), n=1)
    return f" (did you mean `{near[0]}`?)" if near else ""


def _place_problems(
    resources: Resources, nodes: int, gpus_per_node: int, time_limit_minutes: int | None, cluster: ClusterResource
) -> list[Problem]:
    """What the partitions cannot give."""
    if not cluster.partitions:
        return []
    names = resources.partition.split(",") if resources.partition else [p.name for p in cluster.partitions if p.default]
    known = {partition.name: partition for partition in cluster.partitions}
    if missing := [name for name in names if name not in known]:
        return [Problem(param="resources.partition", message=_no_partition(missing[0], cluster.partitions))]
    partitions = [known[name] for name in names]
    if not partitions:
        # No default: a site's own plugin may choose one.
        return []
    found = [
        _gpu_problem(resources, nodes, gpus_per_node, partitions) if gpus_per_node else None,
        # A qos may lift the partition's limits.
        None if resources.qos else _time_problem(time_limit_minutes, partitions),
        None if resources.qos else _node_problem(nodes, partitions),
    ]
    return [problem for problem in found if problem is not None]


def _no_partition(name: str, partitions: Sequence[PartitionResource]) -> str:
    names = [partition.name for partition in partitions]
    shown = ", ".join(
        f"{partition.name} (default)" if partition.default else partition.name for partition in partitions
    )
    return f"there is no partition `{name}`{_meant(name, names)}; this cluster has: {shown}"


def _time_problem(minutes: int | None, partitions: Sequence[PartitionResource]) -> Problem | None:
    limits = [partition.time_limit_minutes for partition in partitions]
    allowed = [limit for limit in limits if limit is not None]
    if minutes is None or len(allowed) < len(limits) or minutes <= max(allowed):
        return None
    where = _named(partitions)
    message = f"{minutes} is more than {where} allows, which is {max(allowed)}; a job is continued past it"
    return Problem(param="resources.time_limit_minutes", message=message)


def _node_problem(nodes: int, partitions: Sequence[PartitionResource]) -> Problem | None:
    most = max(min(_nodes(partition), partition.max_nodes or nodes) for partition in partitions)
    if nodes <= most:
        return None
    message = f"asks for {nodes} nodes, but in {_named(partitions)} a job can have {most}; lower gpus or raise this"
    return Problem(param="resources.gpus_per_node", message=message)


def _gpu_problem(
    resources: Resources, nodes: int, per_node: int, partitions: Sequence[PartitionResource]
) -> Problem | None:
    where, wanted = _named(partitions), resources.gpu_type
    types = sorted({type_ for partition in partitions for shape in partition.shapes for type_ in shape.gpus})
    if not types:
        return Problem(param="resources.partition", message=f"{where} has no GPUs; take a partition that has some")
    if wanted is not None and wanted not in types:
        known = ", ".join(type_ for type_ in types if type_) or "GPUs without a type; leave gpu_type out"
        return Problem(param="resources.gpu_type", message=f"there is no `{wanted}` in {where}; it has: {known}")
    most = max(_count(shape.gpus, wanted) for partition in partitions for shape in partition.shapes)
    named = f"`{wanted}` GPUs" if wanted else "GPUs"
    if per_node > most:
        message = f"{per_node} {named} on one node are more than any node of {where} has; the most is {most}"
        return Problem(param="resources.gpus_per_node", message=message)
    fit = max(_fitting(partition, per_node, wanted) for partition in partitions)
    if nodes > fit:
        message = f"{nodes} nodes with {per_node} {named} each are more than {where} has; there are {fit}"
        return Problem(param="gpus", message=message)
    return None


def _fitting(partition: PartitionResource, per_node: int, wanted: str | None) -> int:
    return sum(shape.nodes for shape in partition.shapes if _count(shape.gpus, wanted) >= per_node)


def _count(gpus: dict[str, int], wanted: str | None) -> int:
    return sum(gpus.values()) if wanted is None else gpus.get(wanted, 0)


def _nodes(partition: PartitionResource) -> int:
    return sum(partition.nodes.values())


def _named(partitions: Sequence[PartitionResource]) -> str:
    return f"partition {' or '.join(partition.name for partition in partitions)}"
