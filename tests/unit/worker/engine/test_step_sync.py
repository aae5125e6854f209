"""All ranks stop at the same step, whichever rank got the request; short steps do not synchronize each time."""

import threading
from random import Random
from types import SimpleNamespace

import pytest

from worker.engine import step_sync
from worker.engine.step_sync import MAX_STEPS, StepSync, steps_until_sync


class Stop:
    requested = False


class World:
    """Ranks of one process: a gather can be read once every rank has begun it."""

    def __init__(self, size):
        self.size = size
        self.rows = [[] for _ in range(size)]
        self.begun = threading.Condition()
        self.gathers = 0

    def ranks(self, rank):
        ranks = type("Ranks", (), {"world": self.size})()
        ranks.begin_gather = lambda values: self.begin_gather(rank, values)
        return ranks

    def begin_gather(self, rank, values):
        number = len(self.rows[rank])
        with self.begun:
            self.rows[rank].append(list(values))
            self.begun.notify_all()

        def read(timeout=None):
            seconds = timeout.total_seconds() if timeout else 10
            with self.begun:
                if not self.begun.wait_for(lambda: all(len(rows) > number for rows in self.rows), seconds):
                    raise RuntimeError("not all ranks have begun the gather")
            self.gathers += rank == 0
            return [rows[number] for rows in self.rows]

        return SimpleNamespace(read=read)


class Clock:
    """A clock with a fixed duration of a step."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        return self.now


@pytest.fixture
def reported():
    """Return a function that runs the ranks; rank 1 gets a stop request before boundary `stop_before`."""

    def run(seconds, stop_before, steps=70, logs=()):
        world = World(len(seconds))
        result = [[] for _ in seconds]

        def rank(number):
            stop, clock = Stop(), Clock(seconds[number])
            own = StepSync(world.ranks(number), stop, now=clock)
            for index in range(steps):
                clock.now += clock.step
                stop.requested = number == 1 and index >= stop_before
                if index in logs:
                    own.queue_gather([float(index)], lambda rows: None)
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
    @pytest.mark.parametrize("seed", range(5))
    def test_shares_at_any_steps_do_not_separate_the_ranks(self, reported, seed):
        drawn = Random(seed)
        logs = {step for step in range(60) if drawn.random() < 0.3}
        stop_before = drawn.randrange(50)
        (first, second), _ = reported((0.001, drawn.choice([0.001, 0.02, 0.1])), stop_before, logs=logs)
        assert first == second
        assert first[-1]
        assert stop_before < len(first) <= stop_before + MAX_STEPS + 1

    def test_short_steps_agree_rarely_and_stop_together(self, reported):
        (first, second), world = reported((0.001, 0.001), stop_before=25)
        assert first == second
        assert first[-1]
        assert 25 < len(first) <= 25 + MAX_STEPS
        assert world.gathers == 4

    def test_slowest_rank_sets_the_interval(self, reported):
        (first, second), world = reported((0.001, 0.2), stop_before=9)
        assert first == second
        assert len(first) == 11
        assert world.gathers == 6

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


class TestSharedValues:
    @pytest.fixture
    def pair(self):
        """Return two ranks with short steps, between their first two steps, and what each received."""
        world, received = World(2), ([], [])
        pair = [StepSync(world.ranks(rank), Stop(), now=Clock(0.0)) for rank in range(2)]
        threads = [threading.Thread(target=rank.should_stop) for rank in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        return pair, received

    def test_a_rank_that_is_ahead_waits_one_step_later(self, pair):
        (first, second), received = pair
        for rank, own in enumerate((first, second)):
            own.queue_gather([rank + 0.5, 7.0], received[rank].append)
            assert not own.should_stop()
        assert received == ([], [])
        first.should_stop()
        assert received == ([[[0.5, 7.0], [1.5, 7.0]]], [])
        second.should_stop()
        assert received[0] == received[1]

    def test_values_are_delivered_in_the_order_of_sharing(self, pair):
        ranks, received = pair
        for number in range(3):
            for rank, own in enumerate(ranks):
                own.queue_gather([float(number)], received[rank].append)
                own.queue_gather([], received[rank].append)
                own.should_stop()
        for own in ranks:
            own.should_stop()
        expected = [rows for number in range(3) for rows in ([[float(number)]] * 2, [[], []])]
        assert received == (expected, expected)

    def test_what_is_under_way_is_delivered_before_what_was_shared_later(self, pair):
        (first, second), received = pair
        for own, deliver in ((first, received[0].append), (second, received[1].append)):
            own.queue_gather([1.0], deliver)
            own.should_stop()
            own.queue_gather([2.0], deliver)
        threads = [threading.Thread(target=own.flush) for own in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert received == ([[[1.0]] * 2, [[2.0]] * 2],) * 2
        first.flush()

    def test_a_rank_that_fails_receives_what_all_have_sent(self, pair):
        ranks, received = pair
        for rank, own in enumerate(ranks):
            own.queue_gather([rank], received[rank].append)
            own.should_stop()
        with pytest.raises(OSError, match="planted"), ranks[0].delivering():
            raise OSError("planted")
        assert received == ([[[0.0], [1.0]]], [])

    def test_a_rank_that_fails_waits_for_no_other(self, pair, monkeypatch):
        (first, _), received = pair
        monkeypatch.setattr(step_sync, "_FAILED_SECONDS", 0.01)
        first.queue_gather([1.0], received[0].append)
        first.should_stop()
        with pytest.raises(OSError, match="planted"), first.delivering():
            raise OSError("planted")
        assert received == ([], [])

    def test_one_rank_receives_its_values_between_the_same_steps(self):
        received, alone = [], StepSync(World(1).ranks(0), Stop(), now=Clock(0.0))
        for number in (1.0, 2.0):
            alone.queue_gather([number], received.append)
            alone.should_stop()
            assert received[-1] == [[number]]


class TestSyncInterval:
    @pytest.mark.parametrize(("seconds", "steps"), [(1e-6, MAX_STEPS), (0.2, 2), (0.5, 1), (3600.0, 1)])
    def test_interval_follows_the_step_time(self, seconds, steps):
        assert steps_until_sync(seconds) == steps
