"""On several nodes, node 0 decides whether the attempt runs; the others read its file."""

import ipaddress
import json
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.launch import LaunchDocument
from worker.launcher.signed_folder import SignedFolder

if TYPE_CHECKING:
    # torchrun's process needs no HTTP client, whose import takes time.
    from worker.reporting.service_client import ServiceClient

log = logging.getLogger(__name__)

_WAIT_SECONDS = 180.0
"""Node 0 may start later, its claim takes seconds, and a shared filesystem may show the file late."""
_POLL_SECONDS = 0.2
_DECISION = "execution"


@dataclass(frozen=True)
class Node:
    """This node of the job."""

    index: int
    count: int
    address: str
    """The host name or address at which the other nodes reach it."""
    scheduler_id: str
    """Is part of file names, so that two scheduler jobs of an attempt never read each other's files."""
    name: str = ""
    """Its name in the scheduler."""

    @property
    def is_first(self) -> bool:
        return self.index == 0


@dataclass(frozen=True)
class AttemptContext:
    """The attempt that this launcher runs."""

    layout: AttemptLayout
    launch: LaunchDocument
    node: Node
    connect: "Callable[[], ServiceClient]"
    """Returns a new connection to the service."""
    interrupted: Callable[[], bool]
    """Returns whether the job is requested to stop."""


def this_node(launch: LaunchDocument, environ: Mapping[str, str]) -> Node:
    """Return this node from Slurm's variables, which a single-node job does not need."""
    scheduler_id = environ.get("SLURM_JOB_ID", "local")
    if launch.nodes == 1:
        return Node(0, 1, "127.0.0.1", scheduler_id)
    name = environ.get("SLURMD_NODENAME", "")
    return Node(int(environ["SLURM_PROCID"]), launch.nodes, _address(launch.host_suffix, environ), scheduler_id, name)


def publish(layout: AttemptLayout, node: Node, execution: int | None) -> int | None:
    """On node 0, publish that this job runs `execution`, or with None that it does not run the attempt."""
    if node.count > 1:
        SignedFolder.of_nodes(layout, node.scheduler_id).write(_DECISION, json.dumps(execution))
    return execution


def await_decision(
    layout: AttemptLayout, node: Node, preparation: float = 0.0, *, now: Callable[[], float] = time.monotonic
) -> int | None:
    """On the other nodes, return the execution that node 0 decided to run; None if the attempt does not run, or node 0
    published nothing.

    Args:
        preparation: Seconds that node 0 may need to prepare the environment of the ranks.
    """
    folder = SignedFolder.of_nodes(layout, node.scheduler_id)
    wait = _WAIT_SECONDS + preparation
    deadline = now() + wait
    while now() < deadline:
        if (decision := folder.read(_DECISION)) is not None:
            execution: int | None = json.loads(decision)
            return execution
        time.sleep(_POLL_SECONDS)
    log.error("node %d got no decision of node 0 within %d seconds", node.index, wait)
    return None


def _address(suffix: str, environ: Mapping[str, str]) -> str:
    """Return Slurm's name of the node if it resolves, else the host name if it does, else the loopback address.

    Where a node's own name is a loopback address to it, which many systems write to /etc/hosts, return the address from
    which it reaches others.
    """
    for name in (environ.get("SLURMD_NODENAME"), socket.gethostname()):
        if name and (address := _resolve(name + suffix)):
            return _outgoing_address() if ipaddress.ip_address(address).is_loopback else name + suffix
    return _outgoing_address()


def _resolve(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def _outgoing_address() -> str:
    """Return the address of the interface with the default route, or the loopback address without such a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: connecting a datagram socket only selects a route. The address is for documentation.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
