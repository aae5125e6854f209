"""Stalls of a run: node 0 suspects one, the launchers of all nodes collect evidence, and node 0 states the verdict."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.wire.reports import EventLevel
from trainyard.contract.wire.worker_events import STALL_OVER, STALL_SUSPECTED
from trainyard.progress_file import ProgressRecord, read_progress
from worker.core import processes
from worker.core.flight_recorder import Collective, read_latest
from worker.launcher.collectives import Difference, find_difference
from worker.launcher.nodes import Node
from worker.launcher.rank_state import LineReader, RankState, read_state
from worker.launcher.stall_verdict import PROOFS, Evidence, Verdict
from worker.launcher.watchdog import DIFFERENT_COLLECTIVES, LimitChange, Recovery, Stall, Suspicion

log = logging.getLogger(__name__)

LIMIT = "stall_limit"
_OBSERVE_SECONDS = 1.0
_READ_SECONDS = 1.0
"""Seconds between two looks at node 0's request: it may be on a network filesystem."""
_NODES_SECONDS = 6.0
"""How long node 0 waits for the evidence of the other nodes."""
_COLLECTIVES_SECONDS = 4.0
"""How long node 0 waits for the collectives of the ranks."""
_PROOF_SECONDS = 15.0
"""Seconds between two collections of evidence that proves that the run cannot go on. The same proof twice ends it."""
_ORDER_HINT = (
    "All ranks must enter the same collectives in the same order. Check the code for a branch that depends on the "
    "rank, or on data that differs between the ranks."
)
_MAX_STATES = 8
_MAX_SUSPICIONS = 20
"""Suspicions that are reported in an attempt. A loader that always pauses must not fill the history."""


class _NodeEvidence(BaseModel):
    """`rank-states-<node>.json`."""

    number: int
    states: list[RankState]
    records: list[ProgressRecord]


class Events(Protocol):
    """Adds events to the job's history."""

    def event(self, execution: int, type_: str, level: EventLevel, message: str, data: dict[str, Any]) -> None:
        """Add an event. Raises OSError: It could not be written."""


class Watch(Protocol):
    """Notices that the run makes no progress."""

    def poll(self) -> Stall | Suspicion | Recovery | LimitChange | None:
        """Return what has changed, if anything has."""

    def judge(self, evidence: Evidence) -> Verdict:
        """Return the verdict on a suspicion."""

    def add_suspension(self, seconds: float) -> None:
        """Exclude a time in which the job was suspended, or the launcher blocked."""


def rank_processes(layout: AttemptLayout, torchrun: int, execution: int) -> dict[int, int]:
    """Return the process of each rank of this node: the one that writes its progress, else, of the processes that the
    rank has started, the one with the most memory."""
    trees = {
        rank: [pid, *(below for below, _ in processes.descendants(pid))]
        for rank, pid in processes.ranks_below(torchrun).items()
    }
    writing = {rank: record.pid for rank, record in read_progress(layout.progress, execution).items()}
    return {
        rank: writing[rank] if writing.get(rank) in tree else max(tree, key=processes.resident_bytes)
        for rank, tree in trees.items()
    }


@dataclass(frozen=True)
class _Observed:
    """A process when its observation began."""

    pid: int
    started: int | None
    used: float
    """Its processor time in seconds."""
    line: LineReader


class Collector:
    """Observes the ranks of this node for a second, and writes what they do.

    It does not request Python stacks: `faulthandler` reads them without the interpreter's lock, and can end a process
    whose other threads run. A suspected rank may be sound.
    """

    def __init__(
        self,
        layout: AttemptLayout,
        node: Node,
        execution: Callable[[], int],
        ranks: Callable[[], Mapping[int, int]],
        now: Callable[[], float],
    ) -> None:
        """
        Args:
            ranks: Returns the process of each rank of this node.
        """
        self._layout = layout
        self._node = node
        self._execution = execution
        self._ranks = ranks
        self._now = now
        self._number = 0
        self._began = 0.0
        self._looked = float("-inf")
        self._observed: dict[int, _Observed] | None = None
        """The process of each rank, while an observation lasts."""

    def poll(self) -> None:
        """Begin an observation at a new request, and write its result when it is over."""
        if self._observed is not None:
            if self._now() - self._began >= _OBSERVE_SECONDS:
                self._write(self._observed)
                self._observed = None
            return
        if self._node.is_first or self._now() - self._looked < _READ_SECONDS:
            return
        self._looked = self._now()
        try:
            number = int(self._layout.stall_request.read_text())
        except (OSError, ValueError):
            return
        if number != self._number:
            self.begin(number)

    def begin(self, number: int) -> None:
        """Begin to observe the ranks of this node for a request."""
        self._number, self._began = number, self._now()
        pids = self._ranks()
        self._observed = {
            rank: _Observed(pid, processes.start_time(pid), processes.processor_seconds(pid), LineReader(pid))
            for rank, pid in pids.items()
        }

    def _write(self, observed: Mapping[int, _Observed]) -> None:
        seconds = self._now() - self._began
        states = [
            read_state(rank, self._node.name, one.pid, one.started, one.used, seconds, one.line.close())
            for rank, one in sorted(observed.items())
        ]
        # Another node may see these files late on a network filesystem.
        records = read_progress(self._layout.progress, self._execution())
        own = [records[rank] for rank in sorted(observed) if rank in records]
        evidence = _NodeEvidence(number=self._number, states=states, records=own)
        try:
            write_atomic(self._layout.rank_states(self._node.index), evidence.model_dump_json())
        except OSError as error:
            log.warning("the states of the ranks cannot be written: %s", error)


@dataclass(frozen=True)
class _Proof:
    """Evidence that the run cannot go on."""

    watch: Watch
    suspicion: Suspicion
    verdict: Verdict
    difference: Difference
    since: float
    checked: float
    """When it was collected last."""


class StallMonitor:
    """Watches the run on node 0, and collects the evidence that node 0 requests on all nodes."""

    def __init__(
        self,
        layout: AttemptLayout,
        node: Node,
        watches: Sequence[Watch],
        execution: Callable[[], int],
        ranks: Callable[[], Mapping[int, int]],
        events: Events,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = layout
        self._node = node
        self._watches = watches
        self._execution = execution
        self._events = events
        self._now = now
        self._collector = Collector(layout, node, execution, ranks, now)
        self._suspicions = 0
        self._pending: tuple[Watch, Suspicion] | None = None
        """A suspicion whose evidence is not complete."""
        self._requested_at = 0.0
        self._verdict: Verdict | None = None
        self._proof: _Proof | None = None

    def poll(self) -> Stall | None:
        """Return the stall if the run is to be ended. Called several times a second on each node."""
        self._collector.poll()
        for watch in self._watches:
            change = watch.poll()
            if isinstance(change, Stall):
                return replace(change, message=f"{change.message}. {self._verdict.text}") if self._verdict else change
            if isinstance(change, Suspicion):
                self._request(watch, change)
            elif isinstance(change, Recovery):
                self._end(change)
            elif isinstance(change, LimitChange):
                self._state_limit(change)
        if self._proof and self._pending is None and self._now() - self._proof.checked >= _PROOF_SECONDS:
            self._request(self._proof.watch, self._proof.suspicion)
        return self._conclude()

    def add_suspension(self, seconds: float) -> None:
        """Exclude a time in which the job was suspended, or the launcher blocked."""
        for watch in self._watches:
            watch.add_suspension(seconds)

    def _state_limit(self, change: LimitChange) -> None:
        text = f"A wait of more than {change.seconds:.0f} s for progress in {change.group} is reported as a stall"
        self._add(LIMIT, "info", text, {"phase": change.group, "seconds": change.seconds})

    def _request(self, watch: Watch, suspicion: Suspicion) -> None:
        self._suspicions += 1
        if self._suspicions > _MAX_SUSPICIONS:
            self._proof = None
            return
        self._pending, self._requested_at = (watch, suspicion), self._now()
        try:
            write_atomic(self._layout.stall_request, str(self._suspicions))
        except OSError as error:
            log.warning("the collectives, and the states of the ranks on other nodes, cannot be requested: %s", error)
        self._collector.begin(self._suspicions)

    def _end(self, recovery: Recovery) -> None:
        was_reported = self._verdict is not None
        self._pending = self._verdict = self._proof = None
        if was_reported:
            text = f"{recovery.title}, after {recovery.seconds:.0f} s"
            self._add(STALL_OVER, "info", text, {"seconds": recovery.seconds})

    def _conclude(self) -> Stall | None:
        """State the verdict when the evidence of all nodes is there, or has had time to come; return the stall if it
        proves the same again."""
        if self._pending is None:
            return None
        watch, suspicion = self._pending
        evidence = self._read_evidence(with_collectives=bool(suspicion.records))
        if evidence is None:
            return None
        self._pending = None
        states, fresh = evidence
        records = {**suspicion.records, **fresh}
        collectives = read_latest(self._layout, self._suspicions)
        # On other nodes, a network filesystem may show the request, or node 0 the reply, much later.
        own = {rank for rank, state in states.items() if state.host == self._node.name}
        known = Evidence(records, states, find_difference(collectives), frozenset(own - collectives.keys()))
        if self._proof is not None:
            return self._confirm(self._proof, known)
        now = self._now()
        verdict = self._verdict = watch.judge(known)
        if verdict.kind in PROOFS and known.difference is not None:
            self._proof = _Proof(watch, suspicion, verdict, known.difference, now, now)
        self._report(suspicion, verdict, states, self._store(verdict, records, states, collectives))
        return None

    def _confirm(self, proof: _Proof, evidence: Evidence) -> Stall | None:
        """Return the stall if the ranks are still in the collectives of the proof, else check again later."""
        now = self._now()
        if evidence.difference != proof.difference:
            self._proof = replace(proof, checked=now)
            return None
        seconds = proof.suspicion.seconds + now - proof.since
        message = f"no rank made progress for {seconds:.0f} seconds, and none can. {proof.verdict.text}"
        # The code is the cause, so the failure names no node for the next attempt to exclude.
        return Stall(proof.verdict.ranks, message, None, _ORDER_HINT, DIFFERENT_COLLECTIVES)

    def _report(self, suspicion: Suspicion, verdict: Verdict, states: Mapping[int, RankState], evidence: str) -> None:
        """Add the suspicion to the job's history. `evidence` is the path of the artifact with all of it."""
        log.warning("%s", verdict.text)
        data = {
            "title": suspicion.title,
            "text": verdict.text,
            "kind": verdict.kind,
            "ranks": list(verdict.ranks),
            "seconds": round(suspicion.seconds, 1),
            "limit_seconds": round(suspicion.limit, 1),
            "states": [state.model_dump() for state in list(states.values())[:_MAX_STATES]],
            "evidence": evidence,
        }
        self._add(STALL_SUSPECTED, "warning", f"{suspicion.title}. {verdict.text}", data)

    def _store(
        self,
        verdict: Verdict,
        records: Mapping[int, ProgressRecord],
        states: Mapping[int, RankState],
        collectives: Mapping[int, Mapping[str, Sequence[Collective]]],
    ) -> str:
        """Write the evidence of all ranks to the artifacts of the run, and return its path there; empty if it cannot be
        written."""
        run = RunLayout(self._layout.root.parent.parent)
        path = run.stall_evidence(self._layout.root.name, self._suspicions)
        document = {
            "verdict": verdict.text,
            "kind": verdict.kind,
            "ranks": list(verdict.ranks),
            "progress": {rank: record.model_dump() for rank, record in sorted(records.items())},
            "states": {rank: state.model_dump() for rank, state in sorted(states.items())},
            "collectives": {
                rank: {group: [one.model_dump() for one in latest] for group, latest in groups.items()}
                for rank, groups in sorted(collectives.items())
            },
        }
        try:
            write_atomic(path, json.dumps(document, indent=1))
        except OSError as error:
            log.warning("the evidence cannot be written to %s: %s", path, error)
            return ""
        return str(path.relative_to(run.artifacts))

    def _read_evidence(
        self, *, with_collectives: bool
    ) -> tuple[dict[int, RankState], dict[int, ProgressRecord]] | None:
        """Return the states and the progress of the ranks by rank; None while nodes or ranks may still write theirs."""
        states: dict[int, RankState] = {}
        records: dict[int, ProgressRecord] = {}
        complete = 0
        for node in range(self._node.count):
            try:
                evidence = _NodeEvidence.model_validate_json(self._layout.rank_states(node).read_bytes())
            except (OSError, ValidationError):
                continue
            if evidence.number == self._suspicions:
                states |= {state.rank: state for state in evidence.states}
                records |= {record.rank: record for record in evidence.records}
                complete += 1
        waited = self._now() - self._requested_at
        if complete < self._node.count and waited < _NODES_SECONDS:
            return None
        if with_collectives and waited < _COLLECTIVES_SECONDS:
            # A rank that is stopped or has ended writes no collectives.
            running = {rank for rank, state in states.items() if not (state.is_stopped or state.has_ended)}
            if running - read_latest(self._layout, self._suspicions).keys():
                return None
        return dict(sorted(states.items())), records

    def _add(self, type_: str, level: EventLevel, message: str, data: dict[str, Any]) -> None:
        try:
            self._events.event(self._execution(), type_, level, message, data)
        except OSError as error:
            log.warning("%s (an event with it cannot be written: %s)", message, error)
