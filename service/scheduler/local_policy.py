"""The local queue's decisions, pure: who may start, who waits, and behind what."""

import re
from collections.abc import Mapping, Sequence

from service.scheduler.base import Observation
from service.scheduler.local_queue import Entry


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


def waiting(entry: Entry, entries: Sequence[Entry], slots: int) -> Observation:
    """Why it waits, in plain words."""
    if entry.ranks > slots:
        has = f"the service has only {slots} now"
        return Observation(
            "pending", f"needs {entry.ranks} local slots, and {has}: raise TRAINYARD_LOCAL_SLOTS or cancel"
        )
    running = [other.tag for other in entries if not other.waiting]
    queued = [other.tag for other in _queued(entries) if other.sequence < entry.sequence]
    behind = (*running, *queued)
    message = f"waiting for {entry.ranks} of {slots} local slots, {taken(entries)} taken" + _behind(running, queued)
    if entry.message:
        message = f"{entry.message}; trying again"
    return Observation("pending", message, behind=behind)


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


def _behind(running: Sequence[str], queued: Sequence[str]) -> str:
    first = [f"{tag} (running)" for tag in running] + [f"{tag} (queued)" for tag in queued]
    if not first:
        return ""
    shown, more = first[0], len(first) - 1
    rest = [f"{len(running) - 1} more running"] if len(running) > 1 else []
    rest += [f"{min(len(queued), more)} more in the queue"] if queued and more else []
    return f"; behind {' and '.join([shown, ', '.join(rest)] if rest else [shown])}"
