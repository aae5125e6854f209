"""The listening TCP sockets of processes, as the kernel lists them."""

import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

Endpoint = tuple[str, int]
"""Address and port."""
_LISTENING = "0A"


def listening_sockets(pids: Iterable[int] = ()) -> set[Endpoint]:
    """Return where the processes listen; by default this process."""
    inodes = set().union(*(_socket_inodes(pid) for pid in pids or [os.getpid()]))
    return {endpoint for inode, endpoint in _listening().items() if inode in inodes}


def _socket_inodes(pid: int) -> set[str]:
    inodes = set()
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    except OSError:
        pass
    return inodes


def _listening() -> dict[str, Endpoint]:
    endpoints = {}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[index] for index in (1, 3, 9))
            if state == _LISTENING:
                endpoints[inode] = _endpoint(local, family)
    return endpoints


def _endpoint(text: str, family: int) -> Endpoint:
    address, port = text.split(":")
    groups = [address[start : start + 8] for start in range(0, len(address), 8)]
    packed = b"".join(struct.pack("=I", int(group, 16)) for group in groups)
    return socket.inet_ntop(family, packed), int(port, 16)
