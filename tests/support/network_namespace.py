"""Another host, as a network namespace that reaches this one over a pair of virtual interfaces."""

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
