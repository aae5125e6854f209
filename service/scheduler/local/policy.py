"""Decisions of the local queue: which entries start, and why the others wait. Pure functions."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from service.scheduler.base import Observation
from service.scheduler.local.queue import Entry, Gpu

MAX_STARTING = 4
"""Maximum number of starts in progress per owner."""
_GPU_NAMES = tuple(map(re.compile, (r"\d+", r"GPU-[\w-]+", r"MIG-[\w/-]+")))
"""Numbers, UUIDs of GPUs, and UUIDs of MIG instances, in both of their forms."""


def startable(entries: Sequence[Entry], slots: int) -> list[Entry]:
    """The waiting entries that start now: strictly in order, as long as their ranks fit into the free slots.

    An entry that needs more slots than exist, because the service was restarted with fewer, does not block the others.
    Nor do the entries of an owner who has several starts in progress: the owner can delay them.
    """
    starting = Counter(entry.uid for entry in entries if not entry.waiting and entry.pid is None)
    free = slots - slots_in_use(entries)
    chosen = []
    for entry in _waiting(entries):
        if entry.ranks > slots or (entry.uid is not None and starting[entry.uid] >= MAX_STARTING):
            continue
        if entry.ranks > free:
            break
        free -= entry.ranks
        starting[entry.uid] += 1
        chosen.append(entry)
    return chosen


@dataclass(frozen=True)
class QueueState:
    """The state of the queue, computed once for the messages of all waiting entries."""

    slots: int
    slots_in_use: int
    running: Sequence[str]
    waiting: Sequence[str]
    position: Mapping[str, int]
    """How many waiting entries are ahead, by tag."""

    @classmethod
    def of(cls, entries: Sequence[Entry], slots: int) -> "QueueState":
        running = [entry.tag for entry in entries if not entry.waiting]
        waiting = [entry.tag for entry in _waiting(entries)]
        position = {tag: index for index, tag in enumerate(waiting)}
        return cls(slots, slots_in_use(entries), running, waiting, position)


def describe_waiting(entry: Entry, queue: QueueState) -> Observation:
    """The observation of a waiting entry, with the reason in its message."""
    if entry.ranks > queue.slots:
        return Observation(
            "pending",
            f"Cannot start: needs {entry.ranks} local slots, and the service has {queue.slots}. Raise "
            "TRAINYARD_LOCAL_SLOTS or cancel the job.",
        )
    if entry.message:
        return Observation("pending", f"{entry.message}. The service retries.")
    message = f"Waiting for {entry.ranks} of {queue.slots} local slots ({queue.slots_in_use} in use)."
    running, waiting = len(queue.running), queue.position[entry.tag]
    if not running + waiting:
        return Observation("pending", message)
    first = queue.running[0] if running else queue.waiting[0]
    return Observation("pending", f"{message} Ahead: {_describe_ahead(first, running, waiting)}.", blocked_by=(first,))


def slots_in_use(entries: Sequence[Entry]) -> int:
    """The slots of running entries."""
    return sum(entry.ranks for entry in entries if not entry.waiting)


def free_gpus(entries: Sequence[Entry], gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that no running entry uses."""
    used = {gpu for entry in entries for gpu in entry.gpus if not entry.waiting}
    return [gpu for gpu in gpus if gpu not in used]


def visible_gpus(environ: Mapping[str, str], devices: Sequence[str]) -> tuple[Gpu, ...]:
    """The GPUs that the service may use: the GPUs in CUDA_VISIBLE_DEVICES, otherwise every `nvidia<n>` in /dev.

    CUDA ignores an entry of another kind than the first and all that follow it, and a list with the same entry twice.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        parts = [part.strip() for part in listed.split(",")]
        kind = next((kind for kind in _GPU_NAMES if kind.match(parts[0])), None)
        known = list(takewhile(lambda part: kind is not None and kind.fullmatch(part), parts))
        return () if len(set(known)) < len(known) else tuple(int(part) if part.isdecimal() else part for part in known)
    matches = (re.fullmatch(r"nvidia(\d+)", name) for name in devices)
    return tuple(sorted(int(match[1]) for match in matches if match))


def _waiting(entries: Sequence[Entry]) -> list[Entry]:
    return sorted((entry for entry in entries if entry.waiting), key=lambda entry: entry.sequence)


def _describe_ahead(first: str, running: int, waiting: int) -> str:
    """The first entry ahead by its tag, and the number of the other entries ahead."""
    shown, waiting = (f"{first} (running)", waiting) if running else (f"{first} (queued)", waiting - 1)
    more = [f"{running - 1} more running"] if running > 1 else []
    more += [f"{waiting} more queued"] if waiting else []
    return ", ".join([shown, *more])
