"""Which nodes every job avoids, because attempts of several jobs did not start there. Pure functions."""

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from service.db.models import NodeFault

LAUNCH_TEXTS: Mapping[str, str] = {
    "launch_failed": "Slurm could not launch jobs there",
    "prolog_failed": "the prolog of the site failed there",
    "not_started": "workers did not start there",
}
"""The kinds of faults that exclude a node, and how users read them. The others can have their cause in the job."""
WINDOW = timedelta(minutes=30)
"""The faults of two jobs within this time exclude a node, for as long after the last fault."""
SITE_NODES, SITE_WINDOW = 3, timedelta(minutes=10)
"""Attempts that fail to start on so many nodes within this time probably have a common cause."""


@dataclass(frozen=True)
class ExcludedNode:
    """A node that new attempts avoid."""

    name: str
    since: datetime
    until: datetime
    faults: tuple[NodeFault, ...]
    """The faults of its launches that count, newest first."""
    partitions: tuple[str, ...] = ()
    """Where it is excluded. In its other partitions, too many nodes are excluded already."""

    @property
    def jobs(self) -> int:
        return len({fault.job_id for fault in self.faults})

    @property
    def cause(self) -> str:
        """Why it is excluded, without a text that a job may have written."""
        return ", ".join(dict.fromkeys(LAUNCH_TEXTS[fault.kind] for fault in self.faults))

    @property
    def drain_command(self) -> str:
        """The command by which an administrator takes the node out of service."""
        reason = f"Trainyard: {self.jobs} jobs did not start: {self.cause}"
        return f"scontrol update nodename={self.name} state=drain reason={shlex.quote(reason)}"


@dataclass(frozen=True)
class Exclusions:
    """The nodes that all jobs avoid at a time."""

    nodes: tuple[ExcludedNode, ...] = ()
    """The excluded nodes, in the order of their newest faults, newest first."""
    retained: tuple[str, ...] = ()
    """Nodes that are equally bad, but stay in use because too many of their partitions' nodes are excluded."""
    failing: tuple[str, ...] = ()
    """The nodes where attempts failed to start within `SITE_WINDOW`."""

    def within(self, partitions: Collection[str]) -> list[ExcludedNode]:
        """Return the nodes that are excluded in any of these partitions."""
        return [node for node in self.nodes if not set(partitions).isdisjoint(node.partitions)]

    @property
    def warning(self) -> str | None:
        """A warning for administrators beside the excluded nodes."""
        parts = []
        if self.retained:
            parts.append(
                f"The limit is reached: {', '.join(self.retained)} would be excluded too, but at most a quarter of the "
                "nodes of a partition is, and never its only node."
            )
        if len(self.failing) >= SITE_NODES or self.retained:
            parts.append(
                f"Attempts did not start on {len(self.failing)} nodes within {SITE_WINDOW.seconds // 60} minutes: the "
                "cause is probably the site, such as the shared filesystem, and not single nodes."
            )
        return " ".join(parts) or None


def exclusions(faults: Iterable[NodeFault], members: Mapping[str, Collection[str]], now: datetime) -> Exclusions:
    """Decide which nodes all jobs avoid.

    Args:
        faults: The faults of the last hour at least.
        members: The nodes of each partition. A node that is in none stays in use.
    """
    launches: dict[str, list[NodeFault]] = {}
    for fault in sorted(faults, key=lambda fault: fault.created_at, reverse=True):
        if fault.kind in LAUNCH_TEXTS and fault.created_at <= now:
            launches.setdefault(fault.node, []).append(fault)
    bad = [node for name, own in launches.items() if (node := _bad_node(name, own, now)) is not None]
    known = [node for node in bad if any(node.name in names for names in members.values())]
    chosen = {
        partition: {node.name for node in [one for one in known if one.name in names][: limit(len(names))]}
        for partition, names in members.items()
    }
    placed = [
        replace(node, partitions=tuple(sorted(part for part, names in chosen.items() if node.name in names)))
        for node in known
    ]
    failing = [name for name, own in launches.items() if now - own[0].created_at < SITE_WINDOW]
    return Exclusions(
        nodes=tuple(node for node in placed if node.partitions),
        retained=tuple(node.name for node in placed if not node.partitions),
        failing=tuple(sorted(failing)),
    )


def limit(nodes: int) -> int:
    """Return how many nodes of a partition may be excluded: a quarter, but at least one, and never the only node."""
    return max(1, nodes // 4) if nodes > 1 else 0


def _bad_node(name: str, faults: Sequence[NodeFault], now: datetime) -> ExcludedNode | None:
    """Return a node as excluded, if it is.

    Args:
        faults: Its launch faults, newest first.
    """
    last = faults[0].created_at
    counted = [fault for fault in faults if last - fault.created_at <= WINDOW]
    if now >= last + WINDOW:
        return None
    oldest = counted[-1]
    second = next((fault for fault in reversed(counted) if fault.job_id != oldest.job_id), None)
    return ExcludedNode(name, second.created_at, last + WINDOW, tuple(counted)) if second else None
