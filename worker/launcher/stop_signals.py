"""A wish to stop, on its way from a signal, the service or the clock to the ranks."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.wire.launch import LaunchDocument

log = logging.getLogger(__name__)

CANCEL_GRACE_SECONDS = 30.0
BLIND_SECONDS = 15.0
"""Who looks every second and has not for so long could not."""
_LOOK_SECONDS = 1.0


class Signals:
    """Handlers that only count: what is done about it is done by the supervising loop."""

    def __init__(self) -> None:
        self.seen = 0
        self.warnings = 0
        """SIGUSR2: what Slurm sends some time before the time limit, and at some sites before a preemption."""

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR2:
            self.warnings += 1
        else:
            self.seen += 1


class StopRequest:
    """The reason to stop: written once for the ranks to read; a person's wish alone replaces a preemption."""

    def __init__(self, layout: AttemptLayout, *, now: Callable[[], float] = time.monotonic) -> None:
        self._path = layout.stop_request
        self._now = now
        self._lock = threading.Lock()
        self.reason: str | None = None
        self.since: float | None = None

    def ask(self, reason: str) -> bool:
        """Leave the reason; True the first time, when the ranks have to be told."""
        with self._lock:
            first = self.reason is None
            if not first and (self.reason, reason) != ("preempted", "user_cancelled"):
                return False
            write_atomic(self._path, reason)
            self.reason = reason
            self.since = self.since if self.since is not None else self._now()
            log.info("asked to stop: %s", reason)
            return first


class SuspendDetector:
    """How long the job was suspended, by a thread that does nothing but look at the time: a disk that is slow holds up
    the loop that writes to it, and this thread not."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._looked = now()
        self._stood = 0.0
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="standstill", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def look(self) -> None:
        """To be called every second: a look that is long overdue was kept from happening with everything else."""
        with self._lock:
            since, self._looked = self._looked, self._now()
            if self._looked - since > BLIND_SECONDS:
                self._stood += self._looked - since

    def take(self) -> float:
        """Seconds since the last call during which nothing could run."""
        self.look()
        with self._lock:
            stood, self._stood = self._stood, 0.0
        return stood

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            self.look()


class TimeLimit:
    """When the allocation ends, and how long before that the ranks are asked to save."""

    def __init__(self, seconds: float, lead: float, *, now: Callable[[], float] = time.monotonic) -> None:
        """`seconds` from now it ends; infinite where nobody knows of a limit."""
        self._now = now
        self._end = now() + seconds
        self._lead = lead

    @classmethod
    def of(
        cls,
        launch: LaunchDocument,
        environ: Mapping[str, str],
        wall: float,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> "TimeLimit":
        """What was asked for or, better, what Slurm says (newer releases do): a qos may give another one.

        Args:
            wall: seconds since 1970.
        """
        told = environ.get("SLURM_JOB_END_TIME", "")
        left = float(told) - wall if told.isdigit() else 0.0
        if left <= 0.0:
            left = (launch.limit_minutes or float("inf")) * 60.0
        return cls(left, launch.lead_of(left), now=now)

    def add_suspension(self, seconds: float) -> None:
        """The job was suspended for so long, which does not count."""
        self._end += seconds

    @property
    def near(self) -> bool:
        return self._now() >= self._end - self._lead

    @property
    def explains_a_warning(self) -> bool:
        """Slurm warns up to a minute early and our clock is finer, so such a warning can be left to it."""
        return self._now() >= self._end - self._lead - 90.0

    @property
    def passed(self) -> bool:
        return self._now() >= self._end
