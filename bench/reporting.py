"""`python -m bench.reporting`: how much reporting slows the training thread, for a service in three states.

A loop of matrix products stands for training steps of about 10 ms. It reports ten values after every ten steps (the
default) to an HTTP server in another process that responds immediately, responds after 30 seconds, or is down.

Short blocks with and without reports alternate in random order, because the wall clock of a shared machine drifts by
more than one per cent. A block without reports calls a reporter that does nothing, which shows the cost of the clock
and of cold caches. Garbage is collected at fixed steps, as in a run. The program prints the median change of the
block's time with its 95 % confidence interval. It also prints the CPU time of reporting, in the call and in the
threads, as a share of the wall time: an upper limit of the change, and less sensitive to other load.
"""

import argparse
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from bench._delayed_server import delayed_server
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import Progress
from trainyard.demo import free_port
from worker.engine.callbacks.garbage_collector import GarbageCollector
from worker.reporting.reporter import NullReporter, SpoolReporter
from worker.reporting.service_client import ServiceClient
from worker.reporting.spool_sender import SpoolSender

MAX_CALL_SECONDS = 100e-6
MAX_STEP_CHANGE = 0.01
STEP_SECONDS = 0.010
REPORT_VALUES = {f"train/value_{number}": 0.1 * number for number in range(10)}
STEPS_PER_REPORT = 10
SLOW_SECONDS = 30.0
DRAIN_SECONDS = 1.0
"""Wait after a block, so that its work in other threads does not slow the next block."""
CONNECT_SECONDS = 3.0
"""Wait until the reporter has connected and read the certificates, which it does once per run."""
_NULL_REPORTER = NullReporter()


@dataclass
class Cost:
    """The measurements with a service in one state."""

    changes: list[float] = field(default_factory=list)
    """Relative change of a block's time by reporting, one per pair of blocks."""
    calls: list[float] = field(default_factory=list)
    """Wall seconds of each report."""
    call_cpu: list[float] = field(default_factory=list)
    """CPU seconds of each report in the calling thread."""
    null_calls: list[float] = field(default_factory=list)
    """Wall seconds of each call of a reporter that does nothing."""
    reporting_cpu: float = 0.0
    """CPU seconds of the process, without those of training."""
    elapsed: float = 0.0
    """Wall seconds of the blocks with reports."""

    def cpu_share(self) -> float:
        """Return the CPU time of reporting as a share of the wall time."""
        return self.reporting_cpu / self.elapsed

    def meets_target(self) -> bool:
        """Return whether a report is fast enough, and both wall and CPU time allow a change below the limit."""
        return (
            p99(self.calls) < MAX_CALL_SECONDS
            and confidence_interval(self.changes)[0] < MAX_STEP_CHANGE
            and self.cpu_share() < MAX_STEP_CHANGE
        )

    def __str__(self) -> str:
        low, high = confidence_interval(self.changes)
        return (
            f"call p50 {median(self.calls) * 1e6:5.0f} us   p99 {p99(self.calls) * 1e6:5.0f} us"
            f" ({p99(self.call_cpu) * 1e6:.0f} us CPU; a call that does nothing: p50"
            f" {median(self.null_calls) * 1e6:.0f} us, p99 {p99(self.null_calls) * 1e6:.0f} us)"
            f"   step {median(self.changes):+.2%} ({low:+.2%} to {high:+.2%})"
            f"   CPU {self.cpu_share():.2%} of the time, {self.reporting_cpu / len(self.calls) * 1e6:.0f} us per report"
        )


def main() -> int:
    """Print the table; return 0 if the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reports", type=int, default=40, help="reports in each block")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks with and without reports")
    options = parser.parse_args()
    torch.set_num_threads(1)
    products_per_step, garbage = _products_per_step(), GarbageCollector()
    with _connected_reporter(0.0) as reporter:
        _run_pair(Cost(), reporter, options.reports, products_per_step, garbage)  # warm-up
    print(
        f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f};"
        f" one report per {STEPS_PER_REPORT} steps"
    )
    print(f"  the machine interrupts a thread for more than 50 us {_interruptions_per_second()} times a second")
    meets_target = True
    for name, delay in (("up", 0.0), ("down", None), ("responds in 30 s", SLOW_SECONDS)):
        cost = Cost()
        with _connected_reporter(delay) as reporter:
            for _ in range(options.pairs):
                _run_pair(cost, reporter, options.reports, products_per_step, garbage)
        print(f"  service {name:16} {cost}", flush=True)
        meets_target &= cost.meets_target()
    return 0 if meets_target else 1


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, for any distribution (binomial order statistics)."""
    ordered = sorted(values)
    outside = max(0, math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return ordered[outside], ordered[-1 - outside]


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def _run_pair(
    cost: Cost, reporter: SpoolReporter, reports: int, products_per_step: int, garbage: GarbageCollector
) -> None:
    order = random.sample((True, False), 2)
    blocks = {reporting: _block(reports, products_per_step, reporter, cost, reporting, garbage) for reporting in order}
    cost.changes.append(blocks[True] / blocks[False] - 1)


@contextmanager
def _connected_reporter(delay: float | None) -> Iterator[SpoolReporter]:
    """Yield a connected reporter; the service responds after `delay` seconds, or is down if None."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder, _service_url(delay) as url:
        layout = AttemptLayout(Path(folder))
        reporter = SpoolReporter(layout, 1, 0, SpoolSender(layout, 1, lambda: ServiceClient(url, "a1", "token")))
        reporter.points(0, REPORT_VALUES)
        time.sleep(CONNECT_SECONDS)
        try:
            yield reporter
        finally:
            reporter.close(0.0)


def _block(
    reports: int,
    products_per_step: int,
    reporter: SpoolReporter,
    cost: Cost,
    reporting: bool,
    garbage: GarbageCollector,
) -> float:
    """Run one block and return its wall seconds; adds the measurements of its calls to `cost`."""
    work = torch.randn(400, 400)
    process_cpu_started, thread_cpu_started = time.process_time(), time.thread_time()
    started = time.perf_counter()
    for number in range(reports):
        for _ in range(products_per_step * STEPS_PER_REPORT):
            work @ work
        garbage.collect_if_due(number * STEPS_PER_REPORT)
        values = {key: number * value for key, value in REPORT_VALUES.items()}
        progress = (
            Progress(step=number * STEPS_PER_REPORT, total_steps=reports * STEPS_PER_REPORT) if reporting else None
        )
        current = reporter if reporting else _NULL_REPORTER
        cpu_started, call_started = time.thread_time(), time.perf_counter()
        current.points(number * STEPS_PER_REPORT, values, progress)
        call_seconds, call_cpu = time.perf_counter() - call_started, time.thread_time() - cpu_started
        (cost.calls if reporting else cost.null_calls).append(call_seconds)
        if reporting:
            cost.call_cpu.append(call_cpu)
    seconds = time.perf_counter() - started
    training_cpu = time.thread_time() - thread_cpu_started
    if reporting:
        cost.elapsed += seconds
        time.sleep(DRAIN_SECONDS)
        cost.reporting_cpu += sum(cost.call_cpu[-reports:]) + time.process_time() - process_cpu_started - training_cpu
    return seconds


def _interruptions_per_second() -> int:
    """Count in one second how often the machine interrupts a busy loop for more than 50 us."""
    count, last = 0, time.perf_counter()
    end = last + 1
    while last < end:
        now = time.perf_counter()
        count += now - last > 50e-6
        last = now
    return count


def _products_per_step() -> int:
    """Return how many matrix products take `STEP_SECONDS`."""
    work = torch.randn(400, 400)
    times = []
    for _ in range(50):
        started = time.thread_time()
        work @ work
        times.append(time.thread_time() - started)
    return max(1, round(STEP_SECONDS / median(times)))


@contextmanager
def _service_url(delay: float | None) -> Iterator[str]:
    if delay is None:
        yield f"http://127.0.0.1:{free_port()}"
        return
    with delayed_server(delay) as url:
        yield url


if __name__ == "__main__":
    sys.exit(main())
