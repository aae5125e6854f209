"""The local queue's decisions, pure: who may start, who waits, and behind what."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.scheduler.base import Observation
from service.scheduler.local.queue import Entry


def startable(entries: Sequence[Entry], slots: int) -> list[Entry]:
    """The waiting entries that start now: strictly in order, as long as their ranks fit into the free slots.

    An entry that can never fit (the service came back with fewer slots) holds nobody up.
    """
    free = slots - taken(entries)
    chosen = []
    for entry in _queued(entries):
        if entry.ranks > slots:
            continue
        if entry.ranks > free:
            break
        free -= entry.ranks
        chosen.append(entry)
    return chosen


@dataclass(frozen=True)
class Line:
    """The queue, looked at once for the words of all that wait in it."""

    slots: int
    taken: int
    running: Sequence[str]
    queued: Sequence[str]
    before: Mapping[str, int]
    """How many wait before it, by tag."""

    @classmethod
    def of(cls, entries: Sequence[Entry], slots: int) -> "Line":
        running = [entry.tag for entry in entries if not entry.waiting]
        queued = [entry.tag for entry in _queued(entries)]
        return cls(slots, taken(entries), running, queued, {tag: place for place, tag in enumerate(queued)})


def waiting(entry: Entry, line: Line) -> Observation:
    """Why it waits, in plain words."""
    if entry.ranks > line.slots:
        has = f"the service has only {line.slots} now"
        return Observation(
            "pending", f"needs {entry.ranks} local slots, and {has}: raise TRAINYARD_LOCAL_SLOTS or cancel"
        )
    if entry.message:
        return Observation("pending", f"{entry.message}; trying again")
    message = f"waiting for {entry.ranks} of {line.slots} local slots, {line.taken} taken"
    running, queued = len(line.running), line.before[entry.tag]
    if not running + queued:
        return Observation("pending", message)
    first = line.running[0] if running else line.queued[0]
    return Observation("pending", f"{message}; behind {_behind(first, running, queued)}", behind=(first,))


def taken(entries: Sequence[Entry]) -> int:
    """The slots that running entries hold."""
    return sum(entry.ranks for entry in entries if not entry.waiting)


def free_gpus(entries: Sequence[Entry], gpus: Sequence[int]) -> list[int]:
    """The GPUs that no running entry holds."""
    held = {gpu for entry in entries for gpu in entry.gpus if not entry.waiting}
    return [gpu for gpu in gpus if gpu not in held]


def visible_gpus(environ: Mapping[str, str], devices: Sequence[str]) -> tuple[int, ...]:
    """The GPUs that the service may give away: those of CUDA_VISIBLE_DEVICES, else every `nvidia<n>` in /dev."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return tuple(int(part) for part in listed.split(",") if part.strip().isdecimal())
    found = (re.fullmatch(r"nvidia(\d+)", name) for name in devices)
    return tuple(sorted(int(match[1]) for match in found if match))


def _queued(entries: Sequence[Entry]) -> list[Entry]:
    return sorted((entry for entry in entries if entry.waiting), key=lambda entry: entry.sequence)


def _behind(first: str, running: int, queued: int) -> str:
    """The first by name, and how many more."""
    shown, queued = (f"{first} (running)", queued) if running else (f"{first} (queued)", queued - 1)
    more = [f"{running - 1} more running"] if running > 1 else []
    more += [f"{queued} more in the queue"] if queued else []
    return " and ".join([shown, ", ".join(more)] if more else [shown])
