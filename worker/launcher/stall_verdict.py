"""Why a run makes no progress: a verdict from the progress records and the states of the processes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainyard.progress_file import ProgressRecord
from worker.launcher.collectives import Difference
from worker.launcher.rank_state import RankState

Kind = Literal[
    "ended",
    "stopped",
    "order",
    "disk",
    "file",
    "loader",
    "interpreter",
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
PROOFS: frozenset[Kind] = frozenset({"order"})
"""Verdicts on runs that cannot go on. What waits for a file, a lock or another process may."""
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


@dataclass(frozen=True)
class Evidence:
    """What is known of a run that makes no progress."""

    records: Mapping[int, ProgressRecord]
    """The progress record of each rank that has one."""
    states: Mapping[int, RankState]
    """The state of each process that could be read."""
    difference: Difference | None = None
    """Where the collectives of the ranks differ, if they are known and differ."""
    silent: frozenset[int] = frozenset()
    """Ranks in which no thread of Python has answered the request."""

    def select(self, ranks: Sequence[int], holds: Callable[[RankState], bool]) -> list[int]:
        """Return the ranks whose state fulfils a condition."""
        return [rank for rank in ranks if rank in self.states and holds(self.states[rank])]


def judge(behind: Sequence[int], evidence: Evidence) -> Verdict:
    """Return the verdict of the first row that the evidence proves.

    Args:
        behind: The ranks that the others wait for; empty where their progress does not distinguish the ranks.
    """
    difference = evidence.difference
    if not behind and difference is not None:
        behind = difference.ranks
    known = sorted(evidence.states)
    suspects = [rank for rank in behind if rank in evidence.states] or ([] if behind else known)
    rows: tuple[tuple[Kind, list[int], str], ...] = (
        ("ended", evidence.select(known, lambda state: state.has_ended), "its process has ended"),
        ("stopped", evidence.select(known, lambda state: state.is_stopped), "a signal or a debugger has stopped it"),
        (
            "order",
            list(difference.ranks) if difference is not None and difference.is_order else [],
            "it is in another collective than other ranks",
        ),
        ("disk", evidence.select(suspects, lambda state: state.is_uninterruptible), "the kernel waits for {file}"),
        (
            "loader",
            [rank for rank in suspects if rank in evidence.records and evidence.records[rank].loading],
            "it waits for its data loader",
        ),
        ("file", evidence.select(suspects, _names_a_file), "it waits for {file}"),
    )
    for kind, candidates, text in rows:
        if candidates:
            return _verdict(kind, candidates, evidence, text)
    if not behind:
        return _verdict_of_all(known, evidence)
    return _verdict_of_suspects(suspects or list(behind), evidence)


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


def _verdict_of_suspects(ranks: Sequence[int], evidence: Evidence) -> Verdict:
    """Return the verdict about ranks that no call explains."""
    records = evidence.records
    outside = [rank for rank in ranks if rank in records and not records[rank].in_torch]
    if busy := evidence.select(ranks, _computes):
        share = max(evidence.states[rank].processor_share for rank in busy)
        return _verdict("slow", busy, evidence, f"it computes ({share:.0%} of a processor), so it may be slow")
    if silent := evidence.select([rank for rank in ranks if rank in evidence.silent], lambda state: True):
        line = evidence.states[silent[0]].line
        where = f", called at {line}" if line else ""
        return _verdict("interpreter", silent, evidence, f"a call in C keeps the interpreter's lock{where}")
    if locked := evidence.select(outside, lambda state: state.in_lock):
        return _verdict("lock", locked, evidence, "it waits for a lock or a queue")
    if outside:
        return _verdict("code", outside, evidence, "it waits in this line")
    if ranks and all(rank in records for rank in ranks):
        return _verdict("operation", ranks, evidence, "it waits in an operation of torch")
    return _verdict("unknown", ranks, evidence, "the reason is not known")


def _computes(state: RankState) -> bool:
    """Return whether a process computes; on a node that others share, it may get a small part of a processor."""
    return state.processor_share >= (_BUSY_RUNNABLE if state.state == "R" else _BUSY)


def _verdict_of_all(known: Sequence[int], evidence: Evidence) -> Verdict:
    """Return the verdict where all ranks are at the same point."""
    records = evidence.records
    if len(records) <= 1:
        return _verdict_of_suspects(sorted(records), evidence)
    record = records[min(records)]
    reason = "check the network between the nodes" if record.in_torch else "the reason is not known"
    kind: Kind = "all_in_operation" if record.in_torch else "unknown"
    return Verdict(kind, (), f"All {len(records)} ranks are {position(record)}; {reason}")


def _verdict(kind: Kind, ranks: Sequence[int], evidence: Evidence, text: str) -> Verdict:
    first = ranks[0]
    file = evidence.states[first].waits_for if first in evidence.states else ""
    text = text.format(file=_shown(file))
    where = (
        f"{_host(first, evidence.records, evidence.states)}{_others(ranks)} is {position(evidence.records.get(first))}"
    )
    return Verdict(kind, tuple(ranks), f"Rank {first}{where}: {text}{_consequence(ranks, evidence)}")


def _consequence(ranks: Sequence[int], evidence: Evidence) -> str:
    """Return what the other ranks do: the collective in which they wait, if it is known."""
    difference = evidence.difference
    if difference is not None and set(ranks) & set(difference.ranks):
        return f". {difference.text}"
    waiting = len([rank for rank in evidence.records if rank not in ranks])
    return f". {waiting} {'rank waits' if waiting == 1 else 'ranks wait'} for it" if waiting else ""


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
