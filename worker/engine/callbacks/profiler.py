"""Traces of a few steps: when the spec says so, or when someone asks a running job."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.spec.sections import Profile
from worker.core.distributed import Ranks
from worker.reporting.reporter import Reporter

if TYPE_CHECKING:
    from torch.profiler import profile

log = logging.getLogger(__name__)

COSTLIEST = 10
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Wanted:
    """The next trace."""

    steps: int
    ranks: tuple[int, ...]
    request: int = 0
    """Its number where someone asked a running job; 0 for the spec's own."""


class Requests:
    """The launcher's file, read by a thread on rank 0, so that no step waits for a filesystem."""

    def __init__(self, layout: AttemptLayout) -> None:
        self._path = layout.profile_request
        self._latest: Wanted | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="profile-requests", daemon=True).start()

    def number(self) -> int:
        """Of the latest one; 0 where there is none."""
        return self._latest.request if self._latest else 0

    def latest(self) -> Wanted | None:
        return self._latest

    def done(self, number: int) -> None:
        """An execution that starts later is not to take it again."""
        self._latest = None
        found = _read(self._path)
        if found and found.request <= number:
            self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        handled = 0
        while True:
            found = _read(self._path)
            if found and found.request > handled:
                handled, self._latest = found.request, found
            time.sleep(_LOOK_SECONDS)


def _read(path: Path) -> Wanted | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads(path.read_text())
        return Wanted(int(document["steps"]), tuple(map(int, document["ranks"])), int(document["request"]))
    return None


class StepProfiler:
    """Opens and closes traces at step boundaries, on all ranks alike. While none is wanted it costs a comparison."""

    def __init__(
        self,
        options: Profile | None,
        folder: Path,
        ranks: Ranks,
        reporter: Reporter,
        requests: Requests | None = None,
    ) -> None:
        self._options = options
        self._folder = folder
        self._ranks = ranks
        self._reporter = reporter
        self._requests = requests
        self._handled = 0
        self._open: _Trace | None = None

    def before(self, step: int, request: int) -> None:
        """Before the update number `step`; `request` is the number all ranks agreed on. Sometimes a collective."""
        if self._open is None and (wanted := self._due(step, request)):
            self._open = _Trace(wanted, step, self._ranks, nsys=bool(self._options and self._options.nsys))

    def after(self, step: int) -> None:
        """After the update number `step`, before what is logged, evaluated or saved. Sometimes a collective."""
        if self._open is not None and step >= self._open.last:
            self._close(step)

    def finish(self, step: int) -> None:
        """After the last step of this execution: a trace that is open ends early, one not begun is called off."""
        if self._open is not None:
            self._close(step)
        asked = self._requests.latest() if self._requests else None
        if asked is not None and asked.request > self._handled:
            message = f"the trace asked for was not taken: no step came after step {step}"
            self._reporter.event("profile_dropped", message, level="warning", data={"request": asked.request})

    def _due(self, step: int, request: int) -> Wanted | None:
        options = self._options
        if options is not None and step == options.start_step:
            return Wanted(options.steps, options.ranks)
        if request <= self._handled:
            return None
        self._handled = request
        wanted = self._requests.latest() if self._requests else None
        found: Wanted | None = from_rank(self._ranks, 0, wanted)
        return found

    def _close(self, last: int) -> None:
        assert self._open is not None
        trace, self._open = self._open, None
        wanted = trace.wanted
        told = trace.close(self._folder, last)
        costliest = from_rank(self._ranks, wanted.ranks[0], told)
        if wanted.request and self._requests:
            self._requests.done(wanted.request)
        if costliest is None:
            return
        where = f"steps {trace.first} to {last}, rank(s) {', '.join(map(str, wanted.ranks))}"
        most = f"; the costliest operations: {', '.join(costliest)}" if costliest else ""
        data = {
            "first_step": trace.first,
            "steps": last - trace.first + 1,
            "ranks": list(wanted.ranks),
            "folder": f"artifacts/{self._folder.name}",
            "costliest": costliest,
            "request": wanted.request,
        }
        self._reporter.event("profile_written", f"a trace of {where}{most}", data=data)


class _Trace:
    """One open trace; on a rank that is not asked for, nothing."""

    def __init__(self, wanted: Wanted, step: int, ranks: Ranks, *, nsys: bool) -> None:
        self.wanted = wanted
        self.first = step
        self.last = step + wanted.steps - 1
        self._rank = ranks.rank
        self._cuda = ranks.device.type == "cuda"
        self._nsys = nsys
        self._profile: profile | None = None
        if ranks.rank in wanted.ranks:
            self._begin()

    def _begin(self) -> None:
        if self._nsys:
            # Two programs cannot read the device's counters at once, so nsys records alone.
            if self._cuda:
                torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            return
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        self._profile = profile(activities=activities, profile_memory=True)
        self._profile.start()

    def close(self, folder: Path, last: int) -> list[str] | None:
        """Write what was recorded; the names of the costliest operations, None on a rank without a trace."""
        if self._rank not in self.wanted.ranks:
            return None
        if self._cuda:
            torch.cuda.synchronize()
        if self._profile is None:
            if self._cuda:
                torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
            return []
        self._profile.stop()
        folder.mkdir(parents=True, exist_ok=True)
        name = f"step-{self.first:010d}-rank-{self._rank}"
        partial = folder / f".{name}.json.gz"
        self._profile.export_chrome_trace(str(partial))
        partial.replace(folder / f"{name}.json.gz")
        averages = self._profile.key_averages()
        cost = "self_device_time_total" if self._cuda else "self_cpu_time_total"
        write_atomic(folder / f"{name}.txt", averages.table(sort_by=cost, row_limit=COSTLIEST))
        log.info("trace of steps %d to %d: %s.json.gz", self.first, last, name)
        return costliest(averages, cost)


def costliest(averages: Sequence[Any], cost: str) -> list[str]:
    """The names of the operations with the highest cost, highest first."""
    ordered = sorted(averages, key=lambda row: float(getattr(row, cost)), reverse=True)
    return [str(row.key)[:80] for row in ordered[:COSTLIEST]]


def from_rank(ranks: Ranks, rank: int, value: Any) -> Any:
    """That rank's value, on every rank. A collective."""
    if ranks.world == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=rank, group=ranks.bookkeeping)
    return box[0]
