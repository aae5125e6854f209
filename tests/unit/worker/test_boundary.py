"""All ranks stop at the same step, whoever was asked and whenever; short steps do not wait for it."""

import threading
from dataclasses import dataclass, field

import pytest
import torch

from worker import boundary
from worker.boundary import Boundary


class Stop:
    wanted = False


@dataclass
class World:
    """Ranks in threads, and a reduction that ends when all have begun it."""

    size: int
    begun: dict = field(default_factory=dict)
    waits: int = 0

    def ranks(self, rank):
        return type("Ranks", (), {"world": self.size, "rank": rank, "bookkeeping": (self, rank)})()

    def all_reduce(self, tensor, op, *, group, async_op):
        assert async_op
        world, rank = group
        turn = sum(1 for owner, _ in world.begun if owner == rank)
        world.begun[(rank, turn)] = tensor

        class Work:
            def wait(self):
                world.waits += 1
                rows = [world.begun[(other, turn)] for other in range(world.size)]
                world.found = torch.stack([row.clone() for row in rows]).amax(0)
                tensor.copy_(world.found)

        return Work()


@pytest.fixture
def world(monkeypatch):
    found = World(2)
    monkeypatch.setattr(boundary.dist, "all_reduce", found.all_reduce)
    return found


class Clock:
    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def lockstep(world, steps, asked, *, seconds):
    """What each rank is told at each boundary; rank 1 is asked to stop before boundary `asked`."""
    stops = [Stop(), Stop()]
    boundaries = [Boundary(world.ranks(r), stops[r], now=Clock(seconds)) for r in range(2)]
    told = []
    for place in range(steps):
        stops[1].wanted = place >= asked
        told.append(meet(boundaries))
        if told[-1][0]:
            break
    return told


def meet(boundaries):
    found = [None, None]
    gate = threading.Barrier(2)

    def run(rank):
        original = boundaries[rank]._finish

        def finish():
            gate.wait()
            result = original()
            gate.wait()
            return result

        boundaries[rank]._finish = finish
        try:
            found[rank] = boundaries[rank].agreed()
        finally:
            boundaries[rank]._finish = original

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return found


class TestAgreement:
    def test_short_steps_hear_of_it_one_boundary_later_and_all_at_once(self, world):
        told = lockstep(world, 9, 3, seconds=0.001)
        assert told == [[False, False]] * 4 + [[True, True]]

    def test_long_steps_hear_of_it_at_once(self, world):
        told = lockstep(world, 9, 3, seconds=1.0)
        assert told == [[False, False]] * 3 + [[True, True]]

    def test_a_wish_from_before_the_first_step_is_heard_at_once(self, world):
        assert lockstep(world, 3, 0, seconds=0.001) == [[True, True]]

    def test_one_rank_alone_talks_to_nobody(self):
        stop = Stop()
        alone = Boundary(World(1).ranks(0), stop, lambda: 4)
        assert not alone.agreed()
        assert alone.profile_request == 4
        stop.wanted = True
        assert alone.agreed()
