"""Which node caused an attempt to fail, and which nodes the next attempt excludes. Pure functions."""

import re
from collections.abc import Sequence

from service.scheduler.base import Observation
from trainyard.contract.wire.reports import FinishRecord

MAX_EXCLUDED = 8
"""The most nodes that an attempt excludes; beyond it the oldest exclusion ends."""
MAX_ATTRIBUTED = 2
"""After this many exclusions, further ends without an exit record are not attributed to their nodes.

The cause is then probably the job, such as a missing interpreter, and exclusions would use up the cluster.
"""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def failed_node(
    exit_record: FinishRecord | None, observation: Observation | None, excluded: Sequence[str] = ()
) -> str | None:
    """Return the node that made the attempt fail, by the scheduler's name; None if there is no evidence of one.

    The exit record names the node, if it does. Otherwise the only node of the allocation counts as failed if the
    scheduler reports a node failure, or if the attempt failed without an exit record.

    Args:
        excluded: The nodes that the attempt excluded.
    """
    named = exit_record.failure.node if exit_record is not None and exit_record.failure else None
    if named is not None:
        # The exit record is untrusted input.
        return named if _NODE.fullmatch(named) else None
    # A failure with an exit record, or after many exclusions, is attributed to the job.
    blames_node = exit_record is None and len(excluded) < MAX_ATTRIBUTED
    if observation is None or observation.ended_as not in (
        ("node_failure", "failed") if blames_node else ("node_failure",)
    ):
        return None
    if len(observation.nodes) != 1:
        return None
    return observation.nodes[0] if _NODE.fullmatch(observation.nodes[0]) else None


def next_excluded(excluded: Sequence[str], node: str | None) -> list[str]:
    """Return the nodes that the next attempt excludes: those of the last attempt and the node that failed it."""
    if node is None:
        return list(excluded)
    return [*(name for name in excluded if name != node), node][-MAX_EXCLUDED:]
