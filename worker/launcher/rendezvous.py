"""Several nodes, one attempt: node 0 decides for all and says so in a file, which the others wait for."""

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

_PATIENCE_SECONDS = 180.0
"""Node 0 may start later, its claim takes seconds, and a shared filesystem may show the file late."""
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Node:
    """This node's place among those of its job."""

    index: int
    count: int
    address: str
    """Under which the other nodes reach it."""
    job: str
    """The scheduler's id: two jobs of one attempt never read each other's files."""
    name: str = ""
    """As the scheduler calls it."""

    @property
    def first(self) -> bool:
        return self.index == 0


@dataclass(frozen=True)
class Rendezvous:
    """Node 0's verdict, where the attempt is to be run: which execution, and where the nodes meet."""

    execution: int
    host: str
    port: int

    @property
    def endpoint(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def this_node(launch: LaunchDocument, environ: Mapping[str, str]) -> Node:
    """Where we are, as Slurm tells its tasks; alone, nothing has to be told."""
    job = environ.get("SLURM_JOB_ID", "local")
    if launch.nodes == 1:
        return Node(0, 1, "127.0.0.1", job)
    name = environ.get("SLURMD_NODENAME", "")
    return Node(int(environ["SLURM_PROCID"]), launch.nodes, _address(launch.host_suffix, environ), job, name)


def publish(layout: AttemptLayout, node: Node, execution: int | None) -> Rendezvous | None:
    """Node 0: say that this job runs the attempt, or (None) that it does not."""
    rendezvous = None
    if execution is not None:
        # Alone, torchrun takes a free port by itself.
        port = _free_port() if node.count > 1 else 0
        rendezvous = Rendezvous(execution, node.address, port)
    if node.count > 1:
        write_atomic(layout.rendezvous(node.job), json.dumps(rendezvous.__dict__ if rendezvous else None))
    return rendezvous


def await_rendezvous(
    layout: AttemptLayout, node: Node, *, now: Callable[[], float] = time.monotonic
) -> Rendezvous | None:
    """The other nodes: what node 0 says; None where the attempt is not to be run, or node 0 says nothing."""
    path = layout.rendezvous(node.job)
    deadline = now() + _PATIENCE_SECONDS
    while now() < deadline:
        try:
            found = json.loads(path.read_text())
        except OSError:
            # Listing the folder makes a network filesystem look again.
            os.listdir(layout.root)
            time.sleep(_LOOK_SECONDS)
            continue
        return Rendezvous(**found) if found else None
    log.error("node %d heard nothing from node 0 within %d seconds", node.index, _PATIENCE_SECONDS)
    return None


def _address(suffix: str, environ: Mapping[str, str]) -> str:
    """Slurm's name of the node where it is a host's, else the host's own."""
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
