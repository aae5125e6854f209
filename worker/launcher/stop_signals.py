"""Stop requests on their way to the ranks: from signals, from the service, and from the time limit."""

import logging
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import ExitReason
from worker.launcher.heartbeat import HeartbeatThread

log = logging.getLogger(__name__)

CANCEL_GRACE_SECONDS = 30.0
SUSPENDED_SECONDS = 15.0
"""A thread that polls every second was stopped or blocked if it did not poll for this long."""
_POLL_SECONDS = 1.0
_RESPONSE_SECONDS = 2.0
"""How long the launcher waits for the service's reason before it signals the ranks."""


def signal_of_ranks(launch: LaunchDocument) -> signal.Signals:
    """Return the signal by which ranks learn of a stop request."""
    warning = launch.spec.restart.signal
    return signal.Signals[warning.name] if warning else signal.SIGUSR2


class SignalCause:
    """Why the scheduler signals the job: it may preempt it, or carry out a cancellation, which the service knows."""

    def __init__(self) -> None:
        self._requested_at: float | None = None
        self._replies = 0

    def is_known(self, heartbeat: HeartbeatThread) -> bool:
        """Ask the service at the first call; return whether it has answered, or has taken too long."""
        if self._requested_at is None:
            self._requested_at, self._replies = time.monotonic(), heartbeat.replies
            heartbeat.send_now()
        return heartbeat.replies > self._replies or time.monotonic() - self._requested_at > _RESPONSE_SECONDS


class StopRequest:
    """The reason to stop, written once for the ranks to read. Only a user's cancellation replaces a preemption."""

    def __init__(self, layout: AttemptLayout) -> None:
        self._path = layout.stop_request
        self._lock = threading.Lock()
        self.reason: ExitReason | None = None
        self.since: float | None = None

    def request(self, reason: ExitReason) -> None:
        """Write the reason.

        If the disk is full, nothing has changed afterwards; the callers repeat the request while its cause lasts.
        """
        with self._lock:
            first = self.reason is None
            if not first and (self.reason, reason) != ("preempted", "user_cancelled"):
                return
            try:
                write_atomic(self._path, reason)
            except OSError as error:
                log.error("the stop request cannot be written: %s", error)
                return
            self.reason = reason
            self.since = self.since if self.since is not None else time.monotonic()
            log.info("stop requested: %s", reason)


class SuspendDetector:
    """Measures how long the job was suspended, in a thread that does nothing but read the clock: unlike the supervising
    loop, it does not wait for a slow disk."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._polled = now()
        self._suspended = 0.0
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="suspend-detector", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def poll(self) -> None:
        """Called every second. A call that is long overdue was delayed together with every other process."""
        with self._lock:
            since, self._polled = self._polled, self._now()
            if self._polled - since > SUSPENDED_SECONDS:
                self._suspended += self._polled - since

    def collect(self) -> float:
        """Return the suspended seconds since the last call."""
        self.poll()
        with self._lock:
            suspended, self._suspended = self._suspended, 0.0
        return suspended

    def _run(self) -> None:
        while not self._closing.wait(_POLL_SECONDS):
            self.poll()


_TIME_LEFT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", re.ASCII)
"""squeue's format of a time: `days-hours:minutes:seconds`, without the larger units that are 0."""
_QUERY_SECONDS = 5.0


def slurm_seconds_left(environ: Mapping[str, str]) -> float | None:
    """Return the seconds until the end of the allocation as Slurm knows it; None if it does not answer."""
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        return None
    command = ["squeue", "--noheader", "--format=%L", f"--jobs={job_id}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("the time limit cannot be queried: %s", error)
        return None
    parts = _TIME_LEFT.fullmatch(done.stdout.strip())
    if parts is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return ((days * 24 + hours) * 60.0 + minutes) * 60.0 + seconds


class TimeLimit:
    """When the allocation ends, and how long before that the ranks are requested to save."""

    def __init__(
        self,
        seconds: float,
        lead: float,
        *,
        now: Callable[[], float] = time.monotonic,
        query: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`seconds` from now until the end; infinite where no limit is known. `query` returns the scheduler's value;
        None if it does not answer."""
        self._now = now
        self._end = now() + seconds
        self._lead = lead
        self._query = query
        self._queried_end: float | None = None
        """The end for which the scheduler was queried last."""

    @classmethod
    def of(
        cls,
        launch: LaunchDocument,
        environ: Mapping[str, str],
        wall: float,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> "TimeLimit":
        """Return the limit that Slurm reports in the environment (newer releases do), since a QOS may change it; else
        the limit of the launch document.

        Args:
            wall: Seconds since 1970, by the clock of this node.
        """
        start, end = (environ.get(f"SLURM_JOB_{name}_TIME", "") for name in ("START", "END"))
        left = float(end) - wall if end.isdigit() else 0.0
        if start.isdigit() and end.isdigit() and not float(start) <= wall < float(end):
            # This node's clock differs from the controller's. The launcher is the first program of the job.
            left = float(end) - float(start)
        if left <= 0.0:
            left = (launch.limit_minutes or float("inf")) * 60.0
        return cls(left, launch.lead_of(left), now=now, query=partial(slurm_seconds_left, environ))

    def add_suspension(self, seconds: float) -> None:
        """Extend the limit: Slurm does not count the time in which the job was suspended."""
        self._end += seconds

    def extend(self, seconds: float) -> None:
        """Set the end to this many seconds from now, if that is later: an operator may have raised the limit.

        An earlier end is ignored, as the service may have observed it before a suspension; Slurm signals a lower limit.
        """
        self._end = max(self._end, self._now() + seconds)

    @property
    def near(self) -> bool:
        """Whether the ranks must save now. Before that, the scheduler is queried once: while the service does not
        answer, nobody else knows that an operator has raised the limit."""
        if self._now() < self._end - self._lead:
            return False
        if self._queried_end != self._end and (left := self._query()) is not None:
            self.extend(left)
        is_near = self._now() >= self._end - self._lead
        if is_near:
            # An end that is later only by a rounding error is no reason to query again.
            self._queried_end = self._end
        return is_near

    @property
    def explains_a_warning(self) -> bool:
        """Whether a warning signal announces the time limit: Slurm sends it up to a minute early, so it is ignored."""
        return self._now() >= self._end - self._lead - 90.0

    @property
    def passed(self) -> bool:
        return self.ends_in(0.0)

    def ends_in(self, seconds: float) -> bool:
        """Whether no more than these seconds are left."""
        return self._now() >= self._end - seconds
