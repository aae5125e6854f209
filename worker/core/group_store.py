"""The store of a process group: where ranks exchange addresses before they connect.

torch's own server listens on all interfaces, and whoever reaches it may read and change the store. Here ranks of one
node meet in a file, and a server, where one is needed, listens on one address alone.
"""

import ipaddress
import logging
import socket
from collections.abc import Mapping
from datetime import timedelta

from torch._C._distributed_c10d import FileStore, HashStore, Store, TCPStore

from worker.core.processes import STORE_VARIABLE

log = logging.getLogger(__name__)


def open_store(environ: Mapping[str, str], timeout: timedelta) -> Store:
    """Return the store of the group that torchrun describes in the environment."""
    rank, world = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    if world == 1:
        store: Store = HashStore()
        store.set_timeout(timeout)
        return store
    if path := environ.get(STORE_VARIABLE):
        store = FileStore(path, world)
        store.set_timeout(timeout)
        return store
    address, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    if rank == 0:
        return serve(listen(address, port, several_nodes=True), address, timeout)
    return TCPStore(address, port, world, is_master=False, timeout=timeout)


def listen(address: str, port: int = 0, *, several_nodes: bool) -> socket.socket:
    """Return a socket that listens on the address alone; with port 0, on a free port.

    Args:
        several_nodes: Whether other nodes connect. Where this node's own name is a loopback address to it, they reach
            it at another one, so the socket listens on all.
    """
    family, _, _, _, (host, *_) = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    if several_nodes and ipaddress.ip_address(str(host)).is_loopback:
        log.warning("this node's name %s is a loopback address, so the store listens on all interfaces", address)
        host = "::" if family == socket.AF_INET6 else "0.0.0.0"  # noqa: S104 (no address that others reach is known)
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(2048)
    return listener


def serve(listener: socket.socket, address: str, timeout: timedelta = timedelta(minutes=30)) -> TCPStore:
    """Return a store whose server, in this process, takes over the socket."""
    port = listener.getsockname()[1]
    return TCPStore(
        address,
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
