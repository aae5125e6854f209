"""The stop of a `script` job's program: which signals its ranks get, and when."""

import logging
import signal
import time
from collections.abc import Callable, Sequence

from trainyard.contract.wire.launch import LaunchDocument
from worker.core import processes
from worker.launcher.stop_signals import signal_of_ranks

log = logging.getLogger(__name__)

_OBSERVE_SECONDS = 1.0
END_SECONDS = 8.0
"""How long a program may take to end after SIGINT. Its trackers send and write the rest in this time."""
_SAVES_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""A program that can save at a stop request catches one of these signals, or calls `should_stop`."""

_STARTERS = frozenset(
    {"uv", "pixi", "mamba", "micromamba", "timeout", "nsys", "perf", "mpirun", "mpiexec", "orterun", "make", "gmake"}
)
"""Programs that start others, and catch signals to forward them or, as make, for their messages. They save nothing."""


class ProgramStop:
    """The stop of the program on one node.

    SIGINT ends Python like Ctrl-C: exit handlers run, in which trackers send the rest. It goes to ranks that catch no
    signal to save on, and to ranks that still run when their time to save is over.
    """

    def __init__(
        self,
        warning: signal.Signals | None,
        polls: Callable[[], bool],
        *,
        in_container: bool,
        runs_command: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            warning: The signal that the spec names.
            polls: Returns whether the program calls `should_stop`.
            in_container: Whether a process that catches each signal forwards it to the program.
            runs_command: Whether each rank is an arbitrary command; its child processes get the signals too.
        """
        self._warning = warning
        self._polls = polls
        self._in_container = in_container
        self._runs_command = runs_command
        self._now = now
        self._sent: set[signal.Signals] = set()
        self._savers: set[int] = set()
        """Ranks that were seen to catch a signal to save on. Python's handlers are gone while a program exits."""
        self._interrupted_at: float | None = None
        self._catches_sigterm = False
        """Whether a rank caught SIGTERM when last observed. The scheduler may end ranks before this process notices."""
        self._observe_at = 0.0
        self._began = False
        """Whether ranks have started, which may have something to save."""
        self.is_answer = warning is not None
        """Whether an end of the program after the request is its answer, and neither an error nor a success."""

    @classmethod
    def of(cls, launch: LaunchDocument, polls: Callable[[], bool]) -> "ProgramStop | None":
        """Return the stop of a `script` job; None for built-in tasks."""
        if not launch.spec.task_kind.runs_program:
            return None
        warning = signal_of_ranks(launch) if launch.spec.restart.signal else None
        return cls(
            warning,
            polls,
            in_container=launch.spec.environment.container is not None,
            runs_command=launch.spec.runs_command,
        )

    @property
    def interrupted(self) -> bool:
        return self._interrupted_at is not None

    def observe(self, ranks: Sequence[int]) -> None:
        """Record, at most once per second, whether ranks catch SIGTERM."""
        if ranks and self._now() >= self._observe_at:
            self._observe_at = self._now() + _OBSERVE_SECONDS
            self._catches_sigterm = not self._in_container and _catch_sigterm(ranks)

    def answers(self, signalled: bool) -> bool:
        """Return whether the end of the program answers a stop request or the scheduler's SIGTERM.

        Args:
            signalled: Whether the scheduler sent SIGTERM to every process of the job.
        """
        return self.is_answer or (signalled and self._catches_sigterm)

    def request(self, ranks: Sequence[int], reason: str) -> None:
        """Send the signals of a stop request, each once. Ranks without a handler ignore them."""
        self._find_savers(ranks)
        cancelled = reason == "user_cancelled"
        expected = {self._warning or signal.SIGUSR2}
        if cancelled or self._warning is None:
            expected.add(signal.SIGTERM)
        caught = not self._in_container and _catch_sigterm(ranks)
        self.is_answer = self.is_answer or cancelled or (caught and signal.SIGTERM not in self._sent)
        for number in sorted(expected - self._sent):
            self._sent.add(number)
            # Processes that ignore the signal are not disturbed. A command's processes without a handler would end, so
            # they get none.
            processes.send_signal(
                (rank for rank in ranks if not self._runs_command or processes.catches(rank, number)), number
            )

    def enforce(self, ranks: Sequence[int], reason: str, *, is_over: bool) -> bool:
        """Interrupt the ranks when it is time, and return whether they must be killed now.

        Args:
            is_over: Whether the program's time to save has passed.
        """
        if self._interrupted_at is not None:
            return self._now() - self._interrupted_at > END_SECONDS
        self._began = self._began or bool(ranks)
        if reason == "user_cancelled" and not self._began:
            return True
        # A program that cannot save does useful work until a time limit, but not after any other request.
        if ranks and (is_over or (reason != "time_limit" and not self._saves(ranks))):
            log.info("the program gets SIGINT, by which it ends")
            self._interrupted_at = self._now()
            processes.send_signal(ranks, signal.SIGINT)
        return False

    def _find_savers(self, ranks: Sequence[int]) -> None:
        expected = {*_SAVES_ON, self._warning or signal.SIGTERM}
        self._savers |= {
            rank
            for rank in ranks
            if any(processes.catches(rank, number) for number in expected)
            and not (self._runs_command and processes.name_of(rank) in _STARTERS)
        }

    def _saves(self, ranks: Sequence[int]) -> bool:
        self._find_savers(ranks)
        return self._polls() or not self._savers.isdisjoint(ranks)


def _catch_sigterm(ranks: Sequence[int]) -> bool:
    return any(processes.catches(rank, signal.SIGTERM) for rank in ranks)
