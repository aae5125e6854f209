"""`python -m bench.reporting`: what reporting costs the thread that trains, whatever the service does.

A loop of matrix products stands for training steps of about 10 ms. It runs without reporting and with a report of ten
values after every ten steps (the default), to an HTTP server in another process that answers at once, answers each
request after 30 seconds, or is not there.

A machine that others use is not steady enough to show one per cent by a clock alone. So short blocks with and without
reports take turns, the first of each pair by chance, and in those without a call that does nothing stands at the same
places: what it takes is the clock's and the cold caches'. Garbage is collected at chosen steps, as in a run. Told is
the median change of the pairs with the interval that holds it in 95 of 100 runs. Beside it stands what depends less on
the others: the processor's time that the process spends on a report, in the call and in the threads beside it, as a
share of the time between two reports. Were all of it taken from the training, the step would change by that much.
"""

import argparse
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import Progress
from worker.engine.callbacks.garbage_collector import GarbageCollector
from worker.reporting.reporter import NullReporter, SpoolReporter
from worker.reporting.service_client import ServiceClient
from worker.reporting.spool_sender import SpoolSender

CALL_SECONDS = 100e-6
STEP_CHANGE = 0.01
STEP_SECONDS = 0.010
VALUES = {f"train/value_{number}": 0.1 * number for number in range(10)}
EVERY = 10
SLOW_SECONDS = 30.0
DRAIN_SECONDS = 1.0
"""After a block: what it left to the threads is not to fall on the next one."""
CONNECT_SECONDS = 3.0
"""For what is done once a run: to connect, and to read the certificates."""
_SILENT = NullReporter()


@dataclass
class Cost:
    """What was measured with a service in one state."""

    changes: list[float] = field(default_factory=list)
    """Of the time of a block, one a pair."""
    calls: list[float] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)
    """Of these, the processor's time."""
    empty: list[float] = field(default_factory=list)
    """Of calls that do nothing."""
    spent: float = 0.0
    """Seconds of the processor, beyond the training itself."""
    elapsed: float = 0.0
    """Seconds of the blocks with reports."""

    def share(self) -> float:
        """Of the time of the blocks: much of it is spent by the clock, and not by the report."""
        return self.spent / self.elapsed

    def good(self) -> bool:
        """The clock does not contradict one per cent, and the processor's time shows it."""
        return p99(self.calls) < CALL_SECONDS and interval(self.changes)[0] < STEP_CHANGE and self.share() < STEP_CHANGE

    def __str__(self) -> str:
        low, high = interval(self.changes)
        return (
            f"call p50 {median(self.calls) * 1e6:5.0f} us   p99 {p99(self.calls) * 1e6:5.0f} us"
            f" ({p99(self.worked) * 1e6:.0f} of the processor; a call that does nothing"
            f" {median(self.empty) * 1e6:.0f} and {p99(self.empty) * 1e6:.0f})   step {median(self.changes):+.2%}"
            f" ({low:+.2%} to {high:+.2%})   processor {self.share():.2%} of the time,"
            f" {self.spent / len(self.calls) * 1e6:.0f} us a report"
        )


def main() -> int:
    """Print the table; 0 where the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reports", type=int, default=40, help="of each block")
    parser.add_argument("--pairs", type=int, default=12, help="of blocks with and without reports")
    options = parser.parse_args()
    torch.set_num_threads(1)
    products, garbage = _products(), GarbageCollector()
    with _reporting(0.0) as reporter:
        _compare(Cost(), reporter, options.reports, products, garbage)  # what is done once a process
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}; a report every {EVERY} steps")
    print(f"  the machine itself holds up a loop that does nothing for more than 50 us {_held_up()} times a second")
    good = True
    for name, delay in (("up", 0.0), ("down", None), ("answers in 30 s", SLOW_SECONDS)):
        cost = Cost()
        with _reporting(delay) as reporter:
            for _ in range(options.pairs):
                _compare(cost, reporter, options.reports, products, garbage)
        print(f"  service {name:16} {cost}", flush=True)
        good &= cost.good()
    return 0 if good else 1


def interval(values: Sequence[float]) -> tuple[float, float]:
    """What holds the median in 95 of 100 cases, whatever the values' distribution. Pure."""
    ordered = sorted(values)
    outside = max(0, math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return ordered[outside], ordered[-1 - outside]


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def _compare(cost: Cost, reporter: SpoolReporter, reports: int, products: int, garbage: GarbageCollector) -> None:
    order = random.sample((True, False), 2)
    blocks = {speaks: _block(reports, products, reporter, cost, speaks, garbage) for speaks in order}
    cost.changes.append(blocks[True] / blocks[False] - 1)


@contextmanager
def _reporting(delay: float | None) -> Iterator[SpoolReporter]:
    """A run's reporter, connected, to a service that answers after so long, or that is not there."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder, _service(delay) as url:
        layout = AttemptLayout(Path(folder))
        reporter = SpoolReporter(layout, 1, 0, SpoolSender(layout, 1, lambda: ServiceClient(url, "a1", "token")))
        reporter.points(0, VALUES)
        time.sleep(CONNECT_SECONDS)
        try:
            yield reporter
        finally:
            reporter.close(0.0)


def _block(
    reports: int, products: int, reporter: SpoolReporter, cost: Cost, speaks: bool, garbage: GarbageCollector
) -> float:
    """Seconds of so many times ten steps."""
    work = torch.randn(400, 400)
    everything, own = time.process_time(), time.thread_time()
    begun = time.perf_counter()
    for number in range(reports):
        for _ in range(products * EVERY):
            work @ work
        garbage.collect_if_due(number * EVERY)
        values = {key: number * value for key, value in VALUES.items()}
        progress = Progress(step=number * EVERY, total_steps=reports * EVERY) if speaks else None
        speaker = reporter if speaks else _SILENT
        spent = time.thread_time()
        called = time.perf_counter()
        speaker.points(number * EVERY, values, progress)
        answered = time.perf_counter()
        worked = time.thread_time() - spent
        (cost.calls if speaks else cost.empty).append(answered - called)
        if speaks:
            cost.worked.append(worked)
    seconds = time.perf_counter() - begun
    training = time.thread_time() - own
    if speaks:
        cost.elapsed += seconds
        time.sleep(DRAIN_SECONDS)
        cost.spent += sum(cost.worked[-reports:]) + time.process_time() - everything - training
    return seconds


def _held_up() -> int:
    """How often in a second, whatever runs: a call during which it happens is that much longer."""
    count, last = 0, time.perf_counter()
    end = last + 1
    while last < end:
        now = time.perf_counter()
        count += now - last > 50e-6
        last = now
    return count


def _products() -> int:
    """How many matrix products take a step's time."""
    work = torch.randn(400, 400)
    times = []
    for _ in range(50):
        begun = time.thread_time()
        work @ work
        times.append(time.thread_time() - begun)
    return max(1, round(STEP_SECONDS / median(times)))


@contextmanager
def _service(delay: float | None) -> Iterator[str]:
    if delay is None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            yield f"http://127.0.0.1:{free.getsockname()[1]}"
        return
    command = [sys.executable, "-m", "bench._answers", str(delay)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
