"""Which node caused an attempt to fail, and which nodes the next attempt excludes. Pure functions."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from service.reconciler.evidence import Evidence
from trainyard.contract.node_lists import is_listed
from trainyard.contract.wire.cluster import FaultKind
from trainyard.contract.wire.reports import NODE_NOT_READY, FinishRecord

MAX_EXCLUDED = 8
"""The most nodes that an attempt excludes; beyond it the oldest exclusion ends."""
MAX_ATTRIBUTED = 2
"""After this many exclusions, further workers that did not start are not attributed to their nodes.

The cause is then probably the job, such as a missing interpreter, and exclusions would use up the cluster.
"""
_SHARED = re.compile(
    r"launch\.json|/attempts/|No space left|quota exceeded|Read-only file system|Stale file handle", re.IGNORECASE
)
"""Startup errors that come from the shared filesystem, so that no node is at fault."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def failed_node(evidence: Evidence, excluded: Sequence[str] = (), stalled_before: Collection[str] = ()) -> str | None:
    """Return the node that made the attempt fail, by the scheduler's name; None without evidence of a failed node.

    The exit record names the node, if it does. Otherwise the only node of the allocation counts as failed if the
    scheduler reports a node failure, or if the worker could not even start there. A worker that started and vanished is
    no evidence: a signal, the out-of-memory killer and a full disk end it as well.

    Args:
        excluded: The nodes that the attempt excluded.
        stalled_before: The nodes of the ranks that stalled earlier attempts. One stall may have any cause; a node
            that is named again counts as failed.
    """
    exit_record, observation = evidence.exit_record, evidence.observation
    named = exit_record.failure.node if exit_record is not None and exit_record.failure else None
    if named is not None:
        # The exit record is untrusted input.
        return named if _NODE.fullmatch(named) else None
    if (host := stalled_host(exit_record)) is not None:
        return host if host in stalled_before else None
    if observation is None or len(observation.nodes) != 1:
        return None
    startup_error = evidence.unclaimed.startup_error
    did_not_start = observation.end_state == "failed" and startup_error and not _SHARED.search(startup_error)
    did_not_launch = evidence.end_state == "launch_failed" and not evidence.unclaimed.vanished
    did_not_launch = did_not_launch or observation.prolog_failed or evidence.is_silent
    is_attributed = exit_record is None and not evidence.started and (did_not_launch or did_not_start)
    is_attributed = is_attributed and len(excluded) < MAX_ATTRIBUTED
    if observation.end_state != "node_failure" and not is_attributed:
        return None
    return observation.nodes[0] if _NODE.fullmatch(observation.nodes[0]) else None


@dataclass(frozen=True)
class Fault:
    """That a node made an attempt fail."""

    node: str
    kind: FaultKind
    message: str


def node_fault(evidence: Evidence, excluded: Sequence[str] = (), stalled_before: Collection[str] = ()) -> Fault | None:
    """Return which node made the attempt fail and how; None if `failed_node` finds none. The arguments are the same."""
    node = failed_node(evidence, excluded, stalled_before)
    exit_record, observation = evidence.exit_record, evidence.observation
    if node is None or observation is None:
        return None
    if exit_record is not None and exit_record.failure is not None and observation.end_state != "node_failure":
        failure, kind = exit_record.failure, _reported_kind(exit_record)
        if failure.type == NODE_NOT_READY and any(is_listed(node, names) for names in observation.nodes):
            kind = "not_started"
        return Fault(node, kind, failure.message)
    if observation.end_state == "node_failure":
        return Fault(node, "node_failure", observation.message)
    if observation.prolog_failed:
        return Fault(node, "prolog_failed", observation.message)
    if observation.end_state == "launch_failed" or evidence.is_silent:
        return Fault(node, "launch_failed", observation.message)
    return Fault(node, "not_started", f"{evidence.unclaimed.startup_error} ({observation.message})")


def _reported_kind(exit_record: FinishRecord) -> FaultKind:
    return "stalled" if exit_record.reason == "stalled" else "reported"


def stalled_host(exit_record: FinishRecord | None) -> str | None:
    """Return the node of the rank that stalled the attempt, if the exit record names it."""
    if exit_record is None or exit_record.reason != "stalled" or exit_record.failure is None:
        return None
    host = exit_record.failure.host
    return host if host is not None and _NODE.fullmatch(host) else None


def next_excluded(excluded: Sequence[str], node: str | None) -> list[str]:
    """Return the nodes that the next attempt excludes: the last attempt's exclusions and the node that failed it."""
    if node is None:
        return list(excluded)
    return [*(name for name in excluded if name != node), node][-MAX_EXCLUDED:]


def affordable(
    names: Sequence[str], fixed: Sequence[str], partitions: Sequence[Sequence[str]], count: int
) -> list[str]:
    """Return the nodes, as many as possible from the beginning, whose exclusion leaves enough nodes for a job.

    Slurm does not refuse a pending job that excludes too many nodes, but holds it.

    Args:
        names: The nodes to be excluded, the most important first.
        fixed: Nodes and node lists that the job excludes in any case.
        partitions: The nodes of each partition where the job may run. Without any, all names are returned.
        count: The number of nodes that the job needs.
    """
    plain = {part for part in fixed if _NODE.fullmatch(part)}
    lists = [part for part in fixed if part not in plain]
    left = [
        {node for node in nodes if node not in plain and not any(is_listed(node, part) for part in lists)}
        for nodes in partitions
        if nodes
    ]
    chosen: list[str] = []
    for name in names:
        if not left or any(len(nodes - {*chosen, name}) >= count for nodes in left):
            chosen.append(name)
    return chosen
