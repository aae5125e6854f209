"""The store of a process group, in which ranks exchange addresses before they connect.

torch's own server listens on all interfaces, and anyone who reaches it may read and change the store. Here the ranks of
a single node meet in a file, and a server, where it is needed, listens on one address alone.
"""

import socket
from collections.abc import Mapping
from datetime import timedelta

from torch._C._distributed_c10d import FileStore, HashStore, Store, TCPStore

from worker.core.processes import STORE_VARIABLE


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
    # Under plain torchrun its agent serves the store.
    if rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return serve(listen(address, port), address, timeout)
    return TCPStore(address, port, world, is_master=False, timeout=timeout)


def listen(address: str, port: int = 0) -> socket.socket:
    """Return a socket that listens on the address alone; with port 0, on a free port."""
    family, _, _, _, resolved = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(resolved)
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
