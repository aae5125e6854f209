"""Another host, as a network namespace that reaches this one over a pair of virtual interfaces, and attacks from it."""

import ipaddress
import json
import secrets
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.sockets import Endpoint, listening_sockets

_ROOT = Path(__file__).parents[2]
_NETWORK = "198.51.100"
"""For documentation: no real host has an address of it."""


@dataclass(frozen=True)
class OtherHost:
    """A network namespace."""

    name: str
    address_of_this_host: str
    """Where the other host reaches this one."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words that run a command on the other host. Needs root."""
        return ("ip", "netns", "exec", self.name)


def attack_everywhere(pids: Iterable[int], host: OtherHost, marker: Path) -> tuple[set[Endpoint], list[dict[str, Any]]]:
    """Attack all sockets of processes as another account, from this host and from another one.

    Args:
        marker: A file that exists afterwards if a process ran what the attacker sent.

    Returns:
        The sockets, and those that are stores of torch.
    """
    endpoints = listening_sockets(pids)
    stores = _attack(endpoints, marker)
    # Loopback addresses are tried at the address of the interface that leads to the other host.
    reached = {(host.address_of_this_host if is_loopback(address) else address, port) for address, port in endpoints}
    stores += _attack(reached, marker, host.prefix)
    return endpoints, stores


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _attack(endpoints: set[Endpoint], marker: Path, prefix: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Attack the sockets in another process; return the stores of torch among them."""
    document = json.dumps({"endpoints": sorted(endpoints), "marker": str(marker)})
    command = [*prefix, sys.executable, "-m", "tests.support.socket_attacker", document]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=120, check=True)
    stores: list[dict[str, Any]] = json.loads(done.stdout)
    return stores


@contextmanager
def other_host() -> Iterator[OtherHost]:
    name = f"ty{secrets.token_hex(3)}"
    here, there = f"{_NETWORK}.1", f"{_NETWORK}.2"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("address", "add", f"{here}/30", "dev", name)
        _ip("link", "set", name, "up")
        _ip("-n", name, "address", "add", f"{there}/30", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "route", "add", "default", "via", here)
        yield OtherHost(name, here)
    finally:
        _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
