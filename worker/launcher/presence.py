"""On several nodes, each launcher marks in a file that its node is alive and that it exited; a lost node has no exit
mark."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, write_atomic
from worker.core.small_files import read_small_file
from worker.launcher.nodes import Node
from worker.launcher.torchrun import SHUTDOWN_SECONDS

_WAIT_SECONDS = SHUTDOWN_SECONDS + 10.0
"""The longest time that torchrun on a healthy node takes to end ranks that hang."""
_POLL_SECONDS = 0.2
_MAX_BYTES = 4096


def mark_alive(layout: AttemptLayout, node: Node) -> None:
    """Mark this node before its ranks start."""
    _mark(layout, node, ended=False)


def mark_exited(layout: AttemptLayout, node: Node) -> None:
    """Mark this node after its ranks have exited and written their files."""
    _mark(layout, node, ended=True)


def await_others(
    layout: AttemptLayout,
    node: Node,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Wait until every other node has exited; return the names of the nodes that did not in time."""
    deadline = now() + _WAIT_SECONDS
    while (missing := _missing(layout, node)) and now() < deadline:
        sleep(_POLL_SECONDS)
    return missing


def _mark(layout: AttemptLayout, node: Node, *, ended: bool) -> None:
    if node.count > 1:
        write_atomic(_file(layout, node, node.index), json.dumps({"name": node.name, "ended": ended}))


def _missing(layout: AttemptLayout, node: Node) -> list[str]:
    marks = {index: _read(_file(layout, node, index)) for index in range(node.count) if index != node.index}
    return [str(mark.get("name") or f"node {index}") for index, mark in marks.items() if not mark.get("ended")]


def _read(path: Path) -> dict[str, object]:
    try:
        document = json.loads(read_small_file(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _file(layout: AttemptLayout, node: Node, index: int) -> Path:
    return layout.errors / f"node-{index}-of-{node.scheduler_id}.json"
