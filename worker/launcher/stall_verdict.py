"""Why a run makes no progress: a verdict from the progress records and the states of the processes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainyard.progress_file import ProgressRecord
from worker.launcher.rank_state import RankState

Kind = Literal[
    "ended",
    "stopped",
    "disk",
    "file",
    "loader",
    "lock",
    "slow",
    "code",
    "operation",
    "all_in_operation",
    "sleep",
    "child",
    "events",
    "unknown",
]
_BUSY, _BUSY_RUNNABLE = 0.5, 0.05
_PEERS = 4
"""Ranks that a sentence names at most."""


@dataclass(frozen=True)
class Verdict:
    """What the ranks that the others wait for do."""

    kind: Kind
    ranks: tuple[int, ...]
    """The ranks that the verdict is about."""
    text: str
    """A sentence."""


def judge(
    behind: Sequence[int],
    records: Mapping[int, ProgressRecord],
    states: Mapping[int, RankState],
) -> Verdict:
    """Return the verdict of the first row that the evidence proves.

    Args:
        behind: The ranks that the others wait for; empty where nothing distinguishes the ranks.
        records: The progress record of each rank that has one.
        states: The state of each process that could be read.
    """
    known = sorted(states)
    suspects = [rank for rank in behind if rank in states] or ([] if behind else known)
    rows: tuple[tuple[Kind, list[int], str], ...] = (
        ("ended", [rank for rank in known if states[rank].has_ended], "its process has ended"),
        ("stopped", [rank for rank in known if states[rank].is_stopped], "a signal or a debugger has stopped it"),
        ("disk", [rank for rank in suspects if states[rank].is_uninterruptible], "the kernel waits for {file}"),
        (
            "loader",
            [rank for rank in suspects if rank in records and records[rank].loading],
            "it waits for its data loader",
        ),
        ("file", [rank for rank in suspects if _names_a_file(states[rank])], "it waits for {file}"),
    )
    for kind, candidates, text in rows:
        if candidates:
            return _verdict(kind, candidates, records, states, text)
    if not behind:
        return _verdict_of_all(known, records, states)
    return _verdict_of_suspects(suspects or list(behind), records, states)


def judge_program(states: Mapping[int, RankState]) -> Verdict:
    """Return the verdict on a program that stands still and reports no progress: the first row that a rank proves.

    Args:
        states: The state of each rank's process that could be read.
    """
    known = sorted(states)
    rows: tuple[tuple[Kind, Callable[[RankState], bool], str], ...] = (
        ("ended", lambda state: state.has_ended, "has ended"),
        ("stopped", lambda state: state.is_stopped, "is stopped by a signal or a debugger"),
        ("disk", lambda state: state.is_uninterruptible, "waits in the kernel for {file}"),
        ("file", _names_a_file, "waits for {file}"),
        ("sleep", lambda state: state.call == "sleep", "sleeps"),
        ("child", lambda state: state.call == "child", "waits for another process"),
        ("lock", lambda state: state.in_lock, "waits for a lock, a queue or a thread"),
        ("events", lambda state: state.call == "events", "waits for a connection, a pipe or a time"),
        ("unknown", lambda state: True, "waits; the reason is not known"),
    )
    for kind, holds, text in rows:
        if ranks := [rank for rank in known if holds(states[rank])]:
            state = states[ranks[0]]
            where = _host(ranks[0], {}, states) + (f" at {state.line}" if state.line else "")
            name = f"Rank {ranks[0]}{_others(ranks)} (process {state.pid}, {state.command or 'unknown'})"
            return Verdict(kind, tuple(ranks), f"{name}{where} {text.format(file=_shown(state.waits_for))}")
    return Verdict("unknown", (), "No process of a rank could be read")


def _verdict_of_suspects(
    ranks: Sequence[int], records: Mapping[int, ProgressRecord], states: Mapping[int, RankState]
) -> Verdict:
    """Return the verdict about ranks that no call explains."""
    outside = [rank for rank in ranks if rank in records and not records[rank].in_torch]
    if busy := [rank for rank in ranks if rank in states and _computes(states[rank])]:
        share = max(states[rank].processor_share for rank in busy)
        return _verdict("slow", busy, records, states, f"it computes ({share:.0%} of a processor), so it may be slow")
    if locked := [rank for rank in outside if rank in states and states[rank].in_lock]:
        return _verdict("lock", locked, records, states, "it waits for a lock or a queue")
    if outside:
        return _verdict("code", outside, records, states, "it waits in this line")
    if ranks and all(rank in records for rank in ranks):
        return _verdict("operation", ranks, records, states, "it waits in an operation of torch")
    return _verdict("unknown", ranks, records, states, "the reason is not known")


def _computes(state: RankState) -> bool:
    """Return whether a process computes; on a node that others share, it may get a small part of a processor."""
    return state.processor_share >= (_BUSY_RUNNABLE if state.state == "R" else _BUSY)


def _verdict_of_all(
    known: Sequence[int], records: Mapping[int, ProgressRecord], states: Mapping[int, RankState]
) -> Verdict:
    """Return the verdict where all ranks are at the same point."""
    if len(records) <= 1:
        return _verdict_of_suspects(sorted(records), records, states)
    record = records[min(records)]
    reason = "check the network between the nodes" if record.in_torch else "the reason is not known"
    kind: Kind = "all_in_operation" if record.in_torch else "unknown"
    return Verdict(kind, (), f"All {len(records)} ranks are {position(record)}; {reason}")


def _verdict(
    kind: Kind,
    ranks: Sequence[int],
    records: Mapping[int, ProgressRecord],
    states: Mapping[int, RankState],
    text: str,
) -> Verdict:
    first = ranks[0]
    file = states[first].waits_for if first in states else ""
    waiting = len([rank for rank in records if rank not in ranks])
    wait = f". {waiting} {'rank waits' if waiting == 1 else 'ranks wait'} for it" if waiting else ""
    text = text.format(file=_shown(file))
    head = (
        f"Rank {first}{_host(first, records, states)}{_others(ranks)} is {position(records.get(first))}: {text}{wait}"
    )
    return Verdict(kind, tuple(ranks), head)


def _others(ranks: Sequence[int]) -> str:
    return f" (and {len(ranks) - 1} more: {', '.join(map(str, ranks[1:_PEERS]))})" if len(ranks) > 1 else ""


def _names_a_file(state: RankState) -> bool:
    """Return whether a process waits for a file, a pipe or a connection; objects of the kernel such as
    `anon_inode:[eventpoll]` explain nothing."""
    return bool(state.waits_for) and not state.waits_for.startswith("anon_inode:")


def _shown(file: str) -> str:
    """Return a file as text; sockets and pipes without a path have only numbers of the kernel."""
    kind = file.partition(":[")[0]
    return {"": "a file or a device", "socket": "a network connection", "pipe": "a pipe of another process"}.get(
        kind, file
    )


def _host(rank: int, records: Mapping[int, ProgressRecord], states: Mapping[int, RankState]) -> str:
    host = (states[rank].host if rank in states else "") or (records[rank].host if rank in records else "")
    return f" on {host}" if host else ""


def position(record: ProgressRecord | None) -> str:
    """Return where a rank is: its step, its phase and its line."""
    if record is None:
        return "without any progress record"
    where = f", at {record.where}" if record.where else ""
    return f"in step {record.step} ({record.phase}){where}" if record.step else f"{record.phase}{where}"
