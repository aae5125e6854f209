"""All ranks stop at the same step, whichever rank got the request; short steps do not synchronize each time."""

import threading

import pytest
import torch

from worker.engine import step_sync
from worker.engine.step_sync import MAX_STEPS, StepSync, steps_until_sync


class Stop:
    requested = False


class World:
    """Ranks in threads, with a reduction that waits for all of them."""

    def __init__(self, size):
        self.size = size
        self.gate = threading.Barrier(size)
        self.begun = {}
        self.reductions = 0

    def ranks(self, rank):
        return type("Ranks", (), {"world": self.size, "rank": rank, "bookkeeping": (self, rank)})()

    def all_reduce(self, tensor, op, *, group):
        _, rank = group
        self.begun[rank] = tensor.clone()
        self.gate.wait(10)
        tensor.copy_(torch.stack(list(self.begun.values())).amax(0))
        self.gate.wait(10)
        self.reductions += rank == 0


class Clock:
    """A clock with a fixed duration of a step."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        return self.now


@pytest.fixture
def reported(monkeypatch):
    """Return a function that runs the ranks; rank 1 gets a stop request before boundary `stop_before`."""

    def run(seconds, stop_before, steps=60):
        world = World(len(seconds))
        monkeypatch.setattr(step_sync.dist, "all_reduce", world.all_reduce)
        result = [[] for _ in seconds]

        def rank(number):
            stop, clock = Stop(), Clock(seconds[number])
            own = StepSync(world.ranks(number), stop, now=clock)
            for index in range(steps):
                clock.now += clock.step
                stop.requested = number == 1 and index >= stop_before
                result[number].append(own.should_stop())
                if result[number][-1]:
                    return

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(seconds))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return result, world

    return run


class TestCommonStopStep:
    def test_short_steps_agree_rarely_and_stop_together(self, reported):
        (first, second), world = reported((0.001, 0.001), stop_before=25)
        assert first == second
        assert first[-1]
        assert 25 < len(first) <= 25 + MAX_STEPS
        assert world.reductions == 4

    def test_slowest_rank_sets_the_interval(self, reported):
        (first, second), world = reported((0.001, 0.2), stop_before=9)
        assert first == second
        assert len(first) == 11
        assert world.reductions == 6

    def test_long_steps_agree_at_every_step(self, reported):
        (first, second), _ = reported((1.0, 1.0), stop_before=3)
        assert first == second == [False] * 3 + [True]

    def test_a_request_before_the_first_step_stops_at_once(self, reported):
        (first, _), _ = reported((0.001, 0.001), stop_before=0)
        assert first == [True]

    def test_a_single_rank_needs_no_communication(self):
        stop = Stop()
        alone = StepSync(World(1).ranks(0), stop, lambda: 4, now=Clock(1.0))
        stop.requested = True
        assert alone.should_stop()
        assert alone.profile_request == 4


class TestSyncInterval:
    @pytest.mark.parametrize(("seconds", "steps"), [(1e-6, MAX_STEPS), (0.2, 2), (0.5, 1), (3600.0, 1)])
    def test_interval_follows_the_step_time(self, seconds, steps):
        assert steps_until_sync(seconds) == steps
