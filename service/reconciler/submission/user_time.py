"""Fair shares of a tick: the order in which the queued jobs of several users are taken, and the time of each user."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

TICK_SECONDS = 2.0
"""Time per tick for the checks of a user's queued jobs. The check that exceeds it is the last check."""


class UserTimeBudget:
    """Takes the queued jobs of users in turns, so that no user's jobs hold up the jobs of other users."""

    def __init__(self, seconds: float = TICK_SECONDS, clock: Callable[[], float] = time.monotonic):
        """
        Args:
            seconds: Time of each user per tick.
        """
        self._seconds = seconds
        self._clock = clock
        self._used: defaultdict[str, float] = defaultdict(float)
        self._last_served: dict[str, int] = {}
        """The number of the last turn, by user."""
        self._turns = 0

    def start_tick(self) -> None:
        """Give every user the whole time again."""
        self._used.clear()

    def sort(self, jobs: Iterable[T], user_of: Callable[[T], str]) -> list[T]:
        """Return the first job of each user, then the second of each, and so on.

        Among users with equal numbers, the user who was served longest ago comes first. The jobs of a user stay in
        their order.
        """
        counts: Counter[str] = Counter()
        keys: list[tuple[int, int, int]] = []
        ordered = list(jobs)
        for position, job in enumerate(ordered):
            user = user_of(job)
            keys.append((counts[user], self._last_served.get(user, 0), position))
            counts[user] += 1
        return [ordered[position] for _, _, position in sorted(keys)]

    def is_used_up(self, user: str) -> bool:
        """Whether the user's other jobs wait for the next tick."""
        return self._used[user] >= self._seconds

    @contextmanager
    def measure(self, user: str) -> Iterator[None]:
        """Count the block as a turn of the user, and its time as the user's."""
        self._turns += 1
        self._last_served[user] = self._turns
        started = self._clock()
        try:
            yield
        finally:
            self._used[user] += self._clock() - started
