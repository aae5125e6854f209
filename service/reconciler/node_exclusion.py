"""Which node an attempt's end is to be laid at, and what the next attempt is kept away from. Pure."""

import re
from collections.abc import Sequence

from service.scheduler.base import Observation
from trainyard.contract.wire.reports import FinishRecord

MAX_EXCLUDED = 8
"""Of a large cluster that many may be bad; beyond it the oldest is tried again."""
MAX_GUESSED = 2
"""Where so many are left out and it ends without a trace all the same, the cause goes with the job: its program, or an
interpreter that is nowhere. It is not to use up the cluster."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def blamed(finish: FinishRecord | None, seen: Observation | None, excluded: Sequence[str] = ()) -> str | None:
    """The node that failed the attempt, by the scheduler's name; None where nothing points at one.

    Args:
        excluded: what the attempt was kept away from.

    What a worker says is a stranger's word: anything but a node's name is no name. An attempt that the scheduler says
    ran on one node and ended in a failure of it points there too, whatever its worker had the time to say; without
    that word, one that ended without a trace as well, as long as that is not what attempts do on any node.
    """
    told = finish.failure.node if finish is not None and finish.failure else None
    if told is not None:
        return told if _NODE.fullmatch(told) else None
    guess = finish is None and len(excluded) < MAX_GUESSED
    witnesses = ("node_failure", "failed") if guess else ("node_failure",)
    if seen is None or seen.ended_as not in witnesses or len(seen.nodes) != 1:
        return None
    return seen.nodes[0] if _NODE.fullmatch(seen.nodes[0]) else None


def next_excluded(excluded: Sequence[str], failed_node: str | None) -> list[str]:
    """What the next attempt is kept away from: as before, and the node that failed the last one."""
    if failed_node is None:
        return list(excluded)
    return [*(name for name in excluded if name != failed_node), failed_node][-MAX_EXCLUDED:]
