"""On several nodes, node 0 decides whether the attempt runs and where the ranks meet; the others read its file."""

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.wire.launch import LaunchDocument

log = logging.getLogger(__name__)

_WAIT_SECONDS = 180.0
"""Node 0 may start later, its claim takes seconds, and a shared filesystem may show the file late."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Node:
    """This node among those of its job."""

    index: int
    count: int
    address: str
    """The host name or address at which the other nodes reach it."""
    scheduler_id: str
    """Part of file names, so that two scheduler jobs of one attempt never read each other's files."""
    name: str = ""
    """Its name in the scheduler."""

    @property
    def is_first(self) -> bool:
        return self.index == 0


@dataclass(frozen=True)
class Rendezvous:
    """Node 0's decision to run the attempt: which execution, and at which endpoint the nodes meet."""

    execution: int
    host: str
    port: int

    @property
    def endpoint(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def this_node(launch: LaunchDocument, environ: Mapping[str, str]) -> Node:
    """Return this node from Slurm's variables; a job of one node needs none."""
    scheduler_id = environ.get("SLURM_JOB_ID", "local")
    if launch.nodes == 1:
        return Node(0, 1, "127.0.0.1", scheduler_id)
    name = environ.get("SLURMD_NODENAME", "")
    return Node(int(environ["SLURM_PROCID"]), launch.nodes, _address(launch.host_suffix, environ), scheduler_id, name)


def publish(layout: AttemptLayout, node: Node, execution: int | None) -> Rendezvous | None:
    """On node 0, publish that this job runs `execution`, or with None that it does not run the attempt."""
    rendezvous = None
    if execution is not None:
        # On one node torchrun chooses a free port.
        port = _free_port() if node.count > 1 else 0
        rendezvous = Rendezvous(execution, node.address, port)
    if node.count > 1:
        write_atomic(layout.rendezvous(node.scheduler_id), json.dumps(rendezvous.__dict__ if rendezvous else None))
    return rendezvous


def await_rendezvous(
    layout: AttemptLayout, node: Node, preparation: float = 0.0, *, now: Callable[[], float] = time.monotonic
) -> Rendezvous | None:
    """On the other nodes, return node 0's decision; None if the attempt does not run, or node 0 published nothing.

    Args:
        preparation: Seconds that node 0 may need to prepare the environment of the ranks.
    """
    path = layout.rendezvous(node.scheduler_id)
    wait = _WAIT_SECONDS + preparation
    deadline = now() + wait
    while now() < deadline:
        try:
            document = json.loads(path.read_text())
        except OSError:
            # Listing the folder makes a network filesystem refresh its cache.
            os.listdir(layout.root)
            time.sleep(_POLL_SECONDS)
            continue
        return Rendezvous(**document) if document else None
    log.error("node %d got no decision of node 0 within %d seconds", node.index, wait)
    return None


def _address(suffix: str, environ: Mapping[str, str]) -> str:
    """Return Slurm's name of the node if it resolves, else the host name if it does, else the loopback address."""
    for name in (environ.get("SLURMD_NODENAME"), socket.gethostname()):
        if name and _resolves(name + suffix):
            return name + suffix
    return "127.0.0.1"


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
