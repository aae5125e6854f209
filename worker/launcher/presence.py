"""Several nodes: each says in a file that it is there, and that it has ended; a dead one says no more."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, write_atomic
from worker.launcher.rendezvous import Node
from worker.launcher.torchrun import SHUTDOWN_SECONDS

_PATIENCE_SECONDS = SHUTDOWN_SECONDS + 10.0
"""The longest that torchrun of a healthy node takes to end ranks that hang."""
_LOOK_SECONDS = 0.2


def mark_alive(layout: AttemptLayout, node: Node) -> None:
    """Before the ranks start."""
    _say(layout, node, ended=False)


def mark_exited(layout: AttemptLayout, node: Node) -> None:
    """After the ranks have ended and left their traces."""
    _say(layout, node, ended=True)


def await_others(
    layout: AttemptLayout,
    node: Node,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Wait until every other node has ended; the names of those that never said so."""
    deadline = now() + _PATIENCE_SECONDS
    while (missing := _missing(layout, node)) and now() < deadline:
        sleep(_LOOK_SECONDS)
    return missing


def _say(layout: AttemptLayout, node: Node, *, ended: bool) -> None:
    if node.count > 1:
        write_atomic(_file(layout, node, node.index), json.dumps({"name": node.name, "ended": ended}))


def _missing(layout: AttemptLayout, node: Node) -> list[str]:
    said = {index: _read(_file(layout, node, index)) for index in range(node.count) if index != node.index}
    return [str(words.get("name") or f"node {index}") for index, words in said.items() if not words.get("ended")]


def _read(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _file(layout: AttemptLayout, node: Node, index: int) -> Path:
    return layout.errors / f"node-{index}-of-{node.job}.json"
