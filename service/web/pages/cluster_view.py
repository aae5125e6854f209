"""What there is to run on, who has it and who waits for it, as the page shows it. Pure; `static/cluster.js` says the
same."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.web.formatting import NOTHING, count, duration
from trainyard.contract.wire.cluster import ClusterResource, GpuCount, PartitionResource
from trainyard.contract.wire.jobs import JobResource

HOLDING = ("running", "pausing", "cancelling")
WAITING = ("queued", "submitting", "pending")


@dataclass(frozen=True)
class Pool:
    """Things of one kind that jobs take."""

    word: str
    free: int | None
    total: int

    @property
    def in_use(self) -> float:
        """The part that is taken, 0 to 1."""
        return 0.0 if self.free is None or not self.total else 1 - self.free / self.total

    @property
    def label(self) -> str:
        known = f"{count(self.free)} of " if self.free is not None else ""
        return f"{known}{count(self.total)}{' free' if self.free is not None else ''}"


@dataclass
class Owner:
    """What one person's jobs have and want, in GPUs, or in worker processes where there are none."""

    name: str
    running: int = 0
    in_use: int = 0
    waiting: int = 0
    requested: int = 0


def pools(cluster: ClusterResource) -> list[Pool]:
    """By type; on the local backend its worker processes."""
    result = [Pool("Worker processes", cluster.slots.free, cluster.slots.total)] if cluster.slots else []
    return [*result, *(Pool(one.type or "GPUs", one.free, one.total) for one in cluster.gpus)]


def owners(jobs: Iterable[JobResource]) -> list[Owner]:
    """Who holds most first, then who wants most."""
    result: dict[str, Owner] = {}
    for job in jobs:
        owner = result.setdefault(job.created_by, Owner(job.created_by))
        gpus = int(job.spec.get("gpus") or 1)
        if job.status in HOLDING:
            owner.running += 1
            owner.in_use += gpus
        elif job.status in WAITING:
            owner.waiting += 1
            owner.requested += gpus
    return sorted(result.values(), key=lambda owner: (-owner.in_use, -owner.requested, owner.name))


def sentence(cluster: ClusterResource) -> str:
    """The state of things in one sentence."""
    if cluster.age_seconds is None:
        return "Waiting for the first scheduler poll."
    if cluster.slots is not None:
        free, total = cluster.slots.free, cluster.slots.total
        where = f"Jobs run on this machine, up to {total} worker processes at once"
        return f"{where}; {free} {'is' if free == 1 else 'are'} free."
    nodes = ", ".join(f"{number} {state}" for state, number in cluster.nodes.items())
    return f"Nodes: {nodes or 'none'}."


def partition_cells(partition: PartitionResource) -> tuple[str, ...]:
    """In the order of the table, after its name and state."""
    limit = partition.time_limit_minutes
    return (
        "none" if limit is None else duration(limit * 60),
        "any" if partition.max_nodes is None else f"up to {partition.max_nodes}",
        ", ".join(f"{number} {state}" for state, number in partition.nodes.items()) or "none",
        _gpus(partition.gpus),
        "all" if partition.groups is None else ", ".join(partition.groups),
    )


def _gpus(gpus: Sequence[GpuCount]) -> str:
    """`3 of 4 a100`."""
    labels = [f"{'?' if one.free is None else one.free} of {one.total} {one.type or ''}".rstrip() for one in gpus]
    return ", ".join(labels) or NOTHING
