"""Rendezvous of torchrun's agents without a socket and without a pickle.

torchrun's own rendezvous listens on all interfaces, accepts every client, and unpickles what it finds there. The nodes
of a job are known from the start, so files of the run directory are enough: each node records that it has arrived at a
start of the ranks, and the start begins when all nodes have arrived.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import HashStore, Store
from torch.distributed import DistStoreError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

from worker.core.group_store import listen, serve
from worker.launcher.signed_folder import SignedFolder
from worker.launcher.torchrun import RENDEZVOUS

_JOIN_SECONDS = 600.0
_POLL_SECONDS = 0.2
_WAITING_SECONDS = 2.0
"""How often a node looks whether others wait for it; torchrun asks several times a second."""


@dataclass(frozen=True)
class Clock:
    """Time, which tests replace."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class NodeStore(Store):
    """torchrun's values for one start of the ranks, in the signed folder. Each value is written once, by one node."""

    def __init__(self, folder: SignedFolder, prefix: str, node: int, clock: Clock = Clock()) -> None:
        super().__init__()
        self._folder = folder
        self._prefix = prefix
        self._node = node
        self._clock = clock
        self._timeout = timedelta(seconds=_JOIN_SECONDS)

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self._folder.write(self._prefix + key, value if isinstance(value, str) else value.decode())

    def get(self, key: str) -> bytes:
        """Wait for a value and return it.

        Raises:
            DistStoreError: No node wrote it within the store's timeout.
        """
        deadline = self._clock.now() + self._timeout.total_seconds()
        while (value := self._folder.read(self._prefix + key)) is None:
            if self._clock.now() >= deadline:
                raise DistStoreError(f"no node wrote `{key}` within {self._timeout}")
            self._clock.sleep(_POLL_SECONDS)
        return value.encode()

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, number: int) -> int:
        """Add this node's number, once, and return the sum over the nodes that have added theirs."""
        name = f"{self._prefix}{key}/"
        self._folder.write(f"{name}{self._node}", str(number))
        return sum(int(self._folder.read(other) or 0) for other in self._folder.names(name))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait for values. See `get`."""
        before = self._timeout
        try:
            self._timeout = timeout or before
            self.multi_get(keys)
        finally:
            self._timeout = before


@dataclass
class NodeRendezvous(RendezvousHandler):
    """The meetings of the nodes for an execution and the later executions of the same attempt.

    Node 0 has rank 0, and determines where the ranks meet.
    """

    run_id: str
    node: int
    count: int
    address: str
    """The address where the ranks meet if this is node 0: its address for other nodes, or the loopback address."""
    folder: SignedFolder | None
    """The folder in which several nodes meet; None with one node."""
    serves_ranks: bool
    """Whether the ranks are clients of a store in this process. Otherwise rank 0 makes the store."""
    clock: Clock = field(default_factory=Clock)
    _start: int = 0
    _server: Any = None
    _waiting: tuple[float, int] = (float("-inf"), 0)
    """When the nodes that wait were counted, and how many there were."""

    def get_backend(self) -> str:
        return RENDEZVOUS

    def get_run_id(self) -> str:
        return self.run_id

    @property
    def use_agent_store(self) -> bool:
        return self.serves_ranks

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all nodes have arrived at the next start.

        Raises:
            RendezvousClosedError: A node has ended.
            RendezvousTimeoutError: Not all nodes arrived in time.
        """
        self._start += 1
        # The nodes that waited for this start do not wait for the next.
        self._waiting = float("-inf"), 0
        store: Store = HashStore()
        if self.folder is not None:
            self._meet(self.folder)
            store = NodeStore(self.folder, self._prefix(self._start), self.node, self.clock)
        if self.node == 0:
            store.set("endpoint", json.dumps([self.address, self._open_port()]))
        address, port = json.loads(store.get("endpoint"))
        return RendezvousInfo(store, self.node, self.count, RendezvousStoreInfo(address, port))

    def _meet(self, folder: SignedFolder) -> None:
        folder.write(f"{self._prefix(self._start)}arrived/{self.node}", "")
        deadline = self.clock.now() + _JOIN_SECONDS
        while self._count_arrived(folder, self._start) < self.count:
            if self.is_closed():
                raise RendezvousClosedError("another node of the job has ended")
            if self.clock.now() >= deadline:
                raise RendezvousTimeoutError(f"not all {self.count} nodes arrived within {_JOIN_SECONDS:.0f} s")
            self.clock.sleep(_POLL_SECONDS)

    def _count_arrived(self, folder: SignedFolder, start: int) -> int:
        return sum(folder.read(name) is not None for name in folder.names(f"{self._prefix(start)}arrived/"))

    def _prefix(self, start: int) -> str:
        # The run id contains the execution: an administrator may run a scheduler job once more under the same id.
        return f"{self.run_id}/{start}/"

    @property
    def _closed(self) -> str:
        return f"{self.run_id}/closed"

    def _open_port(self) -> int:
        """Return the port at which the ranks meet. Each start has its own store: in the previous store, gloo would find
        the addresses of dead ranks (pytorch#135712)."""
        self._server = None
        listener = listen(self.address)
        port = int(listener.getsockname()[1])
        if self.serves_ranks:
            self._server = serve(listener, self.address)
        else:
            listener.close()
        return port

    def num_nodes_waiting(self) -> int:
        """Return how many nodes have arrived at the next start, since their ranks failed."""
        now = self.clock.now()
        if self.folder is not None and now - self._waiting[0] >= _WAITING_SECONDS:
            self._waiting = now, self._count_arrived(self.folder, self._start + 1)
        return self._waiting[1]

    def is_closed(self) -> bool:
        return self.folder is not None and self.folder.read(self._closed) is not None

    def set_closed(self) -> None:
        if self.folder is not None:
            self.folder.write(self._closed, "")

    def shutdown(self) -> bool:
        self.set_closed()
        self._server = None
        return True
