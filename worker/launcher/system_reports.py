"""Reports the usage of a node every ten seconds as metrics under `system/`, in a thread of the launcher. The training's
processes are not involved. No torch."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.stored_name import NODE_PREFIX, RANK_PREFIX
from trainyard.contract.wire.reports import (
    IDLE_GPU_PERCENT,
    IDLE_GPU_SECONDS,
    IDLE_GPUS,
    UNKNOWN_STEP,
    EventLevel,
    EventsBatch,
    MetricsBatch,
    Point,
    SpoolKind,
    WorkerEvent,
)
from trainyard.contract.wire.spool import SpoolBody, format_record
from trainyard.progress_file import read_progress
from worker.launcher.gpu_usage import GpuUsage
from worker.launcher.node_usage import NodeUsage
from worker.launcher.spool_follower import SpoolFollower
from worker.launcher.unused import UnusedGpus
from worker.reporting.service_client import ServiceClient
from worker.reporting.spool_file import SpoolFile
from worker.trackers.journal import EVENTS_PER_NODE

log = logging.getLogger(__name__)

SECONDS = 10.0
"""Seconds between two readings, and before the first reading."""


class Reports(Protocol):
    """Receives the readings."""

    def append(self, execution: int, points: Sequence[Point]) -> None:
        """Append points to the node's spool of an execution. Raises OSError: They could not be written."""

    def state_unused_gpus(self, unused: list[int], count: int) -> None:
        """State that no process has opened these GPUs of the node."""


class Usage(Protocol):
    """Reads the usage of the node and its ranks."""

    def read(self) -> tuple[dict[str, float], dict[int, dict[str, float]]]: ...


class Gpus(Protocol):
    """Reads the usage of the node's GPUs."""

    def read(self) -> dict[int, dict[str, float]]: ...


def metrics_of(
    node: int,
    usage: Mapping[str, float],
    ranks: Mapping[int, Mapping[str, float]],
    gpus: Mapping[int, Mapping[str, float]],
) -> dict[str, float]:
    """Return the values by the name of their metric."""
    root = f"{NODE_PREFIX}{node}"
    values = {f"{root}/{name}": value for name, value in usage.items()}
    for rank, of_rank in ranks.items():
        values |= {f"{RANK_PREFIX}{rank}/{name}": value for name, value in of_rank.items()}
    for gpu, of_gpu in gpus.items():
        values |= {f"{root}/gpu-{gpu}/{name}": value for name, value in of_gpu.items()}
    return values


def next_step(last: int | None, progress: int) -> int:
    """Return the step of a reading: the training's step, but greater than the previous reading's step.

    A metric has one point per step, so each reading adds a step while the training makes none; no reading is lost.
    Pages draw these metrics by their times.
    """
    return progress if last is None else max(progress, last + 1)


class IdleGpus:
    """Counts the GPUs that have been idle for a while."""

    def __init__(self) -> None:
        self._busy_at: dict[int, float] = {}
        """When each GPU was last busy, or first seen."""

    def count(self, gpus: Mapping[int, Mapping[str, float]], now: float) -> int:
        """Return the number of idle GPUs.

        Args:
            gpus: A reading of each GPU; a GPU without a utilisation value counts as busy.
            now: The time of the reading in seconds.
        """
        for gpu, values in gpus.items():
            if values.get("utilization_percent", 100.0) >= IDLE_GPU_PERCENT:
                self._busy_at[gpu] = now
        return sum(now - self._busy_at.setdefault(gpu, now) >= IDLE_GPU_SECONDS for gpu in gpus)


class SystemReports:
    """Reads and reports periodically, until it is closed."""

    def __init__(
        self,
        layout: AttemptLayout,
        node: int,
        execution: Callable[[], int],
        usage: Usage,
        gpus: Callable[[], Gpus],
        reports: Reports,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """
        Args:
            gpus: Called in the thread, since loading NVML takes a while.
        """
        self._layout = layout
        self._node = node
        self._execution = execution
        self._usage = usage
        self._connect_gpus = gpus
        self._gpus: Gpus | None = None
        self.gpu_percent = 0.0
        """The utilisation of the node's busiest GPU at the last reading."""
        self._reports = reports
        self._now = now
        self._last: dict[int, int] = {}
        """The step of the last reading of each execution."""
        self._idle = IdleGpus()
        self._unused = UnusedGpus()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        started = time.thread_time()
        self._usage.read()  # the rates of the first report are of the time from here on
        while not self._closing.wait(SECONDS):
            try:
                self.report()
            except Exception:
                log.exception("the usage of this node is not reported any more")
                return
        log.debug("reading the usage took %.3f s of a processor", time.thread_time() - started)

    def report(self) -> None:
        """Read once, and append the reading. On a full disk the reading is lost."""
        self._gpus = self._gpus or self._connect_gpus()
        usage, ranks = self._usage.read()
        gpus = self._gpus.read()
        self.gpu_percent = max((values.get("utilization_percent", 0.0) for values in gpus.values()), default=0.0)
        if gpus:
            usage[IDLE_GPUS] = self._idle.count(gpus, self._now().timestamp())
            if unused := self._unused.find(gpus, self._now().timestamp()):
                self._reports.state_unused_gpus(unused, len(gpus))
        values = metrics_of(self._node, usage, ranks, gpus)
        execution = self._execution()
        steps = [record.step for record in read_progress(self._layout.progress, execution).values()]
        step = self._last[execution] = next_step(self._last.get(execution), max(steps, default=0))
        at = self._now()
        try:
            points = [Point(key=key, step=step, value=value, time=at) for key, value in values.items()]
            self._reports.append(execution, points)
        except OSError as error:
            log.info("a reading of the usage is left out: %s", error)


def system_batch(execution: int, points: Sequence[Point]) -> MetricsBatch:
    """Return points of the system as a report. It does not state the step from which the execution resumed."""
    return MetricsBatch(execution=execution, resumed_from_step=UNKNOWN_STEP, points=tuple(points))


class NodeSpool:
    """The node's spool of a job whose program has no trackers; made and sent from the first record on."""

    def __init__(self, layout: AttemptLayout, node: int, connect: Callable[[], ServiceClient]) -> None:
        self._layout = layout
        self._node = node
        self._follower = SpoolFollower(layout, connect, node)
        self._execution = 0
        self._file: SpoolFile | None = None
        self._records = 0
        self._lock = threading.Lock()

    def append(self, execution: int, points: Sequence[Point]) -> None:
        """Append points, and send them soon.

        Raises:
            OSError: They could not be written.
        """
        self._append(execution, lambda number: ("metrics", system_batch(execution, points)))

    def event(self, execution: int, type_: str, level: EventLevel, message: str, data: dict[str, Any]) -> None:
        """Add an event to the job's history.

        Raises:
            OSError: It could not be written.
        """

        def body(number: int) -> tuple[SpoolKind, SpoolBody]:
            event = WorkerEvent(
                sequence=(self._node + 1) * EVENTS_PER_NODE + number,
                type=type_,
                level=level,
                message=message,
                data=data,
                time=datetime.now(UTC),
            )
            return "events", EventsBatch(execution=execution, events=(event,))

        self._append(execution, body)

    def _append(self, execution: int, body: Callable[[int], tuple[SpoolKind, SpoolBody]]) -> None:
        """Append a record, which `body` makes from its number."""
        with self._lock:
            if execution != self._execution or self._file is None:
                self._begin(execution)
            if self._file is not None:
                self._file.append(format_record(self._records, *body(self._records)))
                self._records += 1
        self._follower.wake()

    def state_unused_gpus(self, unused: list[int], count: int) -> None:
        """Do nothing: the ranks of a built-in task use their GPUs, or fail."""

    def _begin(self, execution: int) -> None:
        if self._file:
            self._file.close()
        path = self._layout.tracker_spool(execution, self._node)
        self._records = path.read_bytes().count(b"\n") if path.exists() else 0
        self._file, self._execution = SpoolFile(path), execution
        self._follower.begin(execution)

    def close(self, timeout: float) -> None:
        """Send the rest for about `timeout` seconds at most."""
        if self._file:
            self._file.close()
        self._follower.close(timeout)


def read_system(
    layout: AttemptLayout, node: int, torchrun: int, execution: Callable[[], int], reports: Reports
) -> SystemReports:
    """Return the reports of this node."""
    usage = NodeUsage(torchrun, RunLayout(layout.root.parent.parent).root)
    return SystemReports(
        layout, node, execution, usage, lambda: GpuUsage(os.environ.get("CUDA_VISIBLE_DEVICES")), reports
    )
