"""Records traces of a few steps, as set in the spec or requested of a running job."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.spec.sections import Profile
from worker.core.distributed import Ranks
from worker.engine.callbacks.base import Callback, StepResult
from worker.reporting.reporter import Reporter

if TYPE_CHECKING:
    from torch.profiler import profile

log = logging.getLogger(__name__)

MAX_OPERATIONS = 10
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class TraceRequest:
    """The next trace to record."""

    steps: int
    ranks: tuple[int, ...]
    request: int = 0
    """The number of the request; 0 for the trace of the spec."""


class TraceRequests:
    """Reads the launcher's request file in a thread on rank 0, so that no step waits for a filesystem."""

    def __init__(self, layout: AttemptLayout) -> None:
        self._path = layout.profile_request
        self._latest: TraceRequest | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="trace-requests", daemon=True).start()

    def number(self) -> int:
        """Return the number of the latest request; 0 if there is none."""
        return self._latest.request if self._latest else 0

    def latest(self) -> TraceRequest | None:
        return self._latest

    def done(self, number: int) -> None:
        """Remove the request's file, so that a later execution does not record it again."""
        self._latest = None
        request = _read(self._path)
        if request and request.request <= number:
            self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        handled = 0
        while True:
            request = _read(self._path)
            if request and request.request > handled:
                handled, self._latest = request.request, request
            time.sleep(_POLL_SECONDS)


def _read(path: Path) -> TraceRequest | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads(path.read_text())
        return TraceRequest(int(document["steps"]), tuple(map(int, document["ranks"])), int(document["request"]))
    return None


class Profiler(Callback):
    """Starts and stops traces at step boundaries, at the same steps on all ranks. Without a trace a step costs a
    comparison."""

    def __init__(
        self,
        options: Profile | None,
        folder: Path,
        ranks: Ranks,
        reporter: Reporter,
        requests: TraceRequests | None = None,
        agreed_request: Callable[[], int] = lambda: 0,
    ) -> None:
        """`agreed_request` returns the number of the latest request that all ranks know of; 0 for none."""
        self._options = options
        self._folder = folder
        self._ranks = ranks
        self._reporter = reporter
        self._requests = requests
        self._agreed_request = agreed_request
        self._handled = 0
        self._open: _Trace | None = None

    def on_step_start(self, step: int) -> None:
        """Start a trace if it is due. A collective if a new request is due."""
        if self._open is None and (request := self._due(step)):
            self._open = _Trace(request, step, self._ranks, nsys=bool(self._options and self._options.nsys))

    def on_step_end(self, result: StepResult) -> None:
        """Stop the trace after its last step, before anything is logged, evaluated or saved."""
        if self._open is not None and result.step >= self._open.last:
            self._close(self._open, result.step)

    def on_loop_end(self, step: int) -> None:
        """Stop an open trace early. Report a request for which no step is left."""
        if self._open is not None:
            self._close(self._open, step)
        pending = self._requests.latest() if self._requests else None
        if pending is not None and pending.request > self._handled:
            message = f"the requested trace was not recorded: no step came after step {step}"
            self._reporter.event("profile_dropped", message, level="warning", data={"request": pending.request})

    def _due(self, step: int) -> TraceRequest | None:
        options = self._options
        if options is not None and step == options.start_step:
            return TraceRequest(options.steps, options.ranks)
        number = self._agreed_request()
        if number <= self._handled:
            return None
        self._handled = number
        latest = self._requests.latest() if self._requests else None
        request: TraceRequest | None = self._ranks.broadcast(latest)
        return request

    def _close(self, trace: "_Trace", last: int) -> None:
        self._open = None
        request = trace.request
        operations = self._ranks.broadcast(trace.close(self._folder, last), request.ranks[0])
        if request.request and self._requests:
            self._requests.done(request.request)
        if operations is None:
            return
        message = f"trace of steps {trace.first} to {last}, rank(s) {', '.join(map(str, request.ranks))}"
        if operations:
            message += f"; most expensive operations: {', '.join(operations)}"
        data = {
            "first_step": trace.first,
            "steps": last - trace.first + 1,
            "ranks": list(request.ranks),
            "folder": f"artifacts/{self._folder.name}",
            "operations": operations,
            "request": request.request,
        }
        self._reporter.event("profile_written", message, data=data)


class _Trace:
    """An open trace; on a rank that is not traced, it records nothing."""

    def __init__(self, request: TraceRequest, step: int, ranks: Ranks, *, nsys: bool) -> None:
        self.request = request
        self.first = step
        self.last = step + request.steps - 1
        self._rank = ranks.rank
        self._cuda = ranks.device.type == "cuda"
        self._nsys = nsys
        self._profile: profile | None = None
        if ranks.rank in request.ranks:
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
        """Write the trace; return the names of the most expensive operations, or None on a rank that is not traced."""
        if self._rank not in self.request.ranks:
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
        write_atomic(folder / f"{name}.txt", averages.table(sort_by=cost, row_limit=MAX_OPERATIONS))
        log.info("trace of steps %d to %d: %s.json.gz", self.first, last, name)
        return _most_expensive(averages, cost)


def _most_expensive(averages: Sequence[Any], cost: str) -> list[str]:
    ordered = sorted(averages, key=lambda row: float(getattr(row, cost)), reverse=True)
    return [str(row.key)[:80] for row in ordered[:MAX_OPERATIONS]]
