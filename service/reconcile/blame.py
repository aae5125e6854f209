"""Which node an attempt's end is to be laid at, and what the next attempt is kept away from. Pure."""

import re
from collections.abc import Sequence

from service.scheduler.base import Observation
from trainyard.contract.reports import FinishRecord

MAX_EXCLUDED = 8
"""Of a large cluster that many may be bad; beyond it the oldest is tried again."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def blamed(finish: FinishRecord | None, seen: Observation | None) -> str | None:
    """The node that failed the attempt, by the scheduler's name; None where nothing points at one.

    What a worker says is a stranger's word: anything but a node's name is no name. An attempt that the scheduler says
    ran on one node and ended in a failure of it points there too, whatever its worker had the time to say; without
    that word, one that ended without a trace as well.
    """
    told = finish.failure.node if finish is not None and finish.failure else None
    if told is not None:
        return told if _NODE.fullmatch(told) else None
    witnesses = ("node_failure",) if finish is not None else ("node_failure", "failed")
    if seen is None or seen.ended_as not in witnesses or len(seen.nodes) != 1:
        return None
    return seen.nodes[0] if _NODE.fullmatch(seen.nodes[0]) else None


def next_excluded(excluded: Sequence[str], blamed_node: str | None) -> list[str]:
    """What the next attempt is kept away from: as before, and the node that failed the last one."""
    if blamed_node is None:
        return list(excluded)
    return [*(name for name in excluded if name != blamed_node), blamed_node][-MAX_EXCLUDED:]
