"""Takeover of the leader lease, and runs that continue after their attempt has ended."""

from datetime import timedelta

import pytest

from service.core.errors import LeaseLostError
from service.db.leader_lease import LeaderLease
from tests.support.world import World

CANCEL = {"stop": "cancel", "profile": None, "seconds_left": None}


def test_lease_lost_during_a_tick_is_not_reacquired_in_it(world: World) -> None:
    """The tick's data may be outdated, and a new term would permit its writes."""
    world.tick()
    world.clock.advance(60)
    other = LeaderLease(world.database, "two")
    assert other.acquire(world.clock())
    other.release(world.clock())
    world.reconciler.renew()
    with pytest.raises(LeaseLostError), world.reconciler.lease.write():
        pytest.fail("what was decided before the other came would be written after it")
    world.reconciler.run_once()
    with world.reconciler.lease.write():
        pass


def test_a_long_tick_keeps_its_lease(world: World) -> None:
    world.tick()
    world.clock.advance(10)
    world.reconciler.renew()
    world.clock.advance(10)
    assert not LeaderLease(world.database, "two").acquire(world.clock())


class TestClocksThatDisagree:
    """Two services on one database, each with its own clock."""

    HOUR = timedelta(hours=1)

    def test_dead_leader_is_replaced_within_seconds(self, world: World) -> None:
        ahead, other = LeaderLease(world.database, "ahead"), LeaderLease(world.database, "other")
        assert ahead.acquire(world.clock() + self.HOUR)
        for _ in range(3):
            assert not other.acquire(world.clock())
            world.clock.advance(5)
        assert other.acquire(world.clock())
        with pytest.raises(LeaseLostError), ahead.write():
            pytest.fail("two lead")

    def test_leader_that_renews_is_not_replaced(self, world: World) -> None:
        ahead, other = LeaderLease(world.database, "ahead"), LeaderLease(world.database, "other")
        for _ in range(10):
            assert ahead.acquire(world.clock() + self.HOUR)
            assert not other.acquire(world.clock())
            world.clock.advance(5)

    @pytest.mark.fault_scenario(37)
    def test_leader_whose_clock_is_set_back_loses_the_lease(self, world: World) -> None:
        back, other = LeaderLease(world.database, "back"), LeaderLease(world.database, "other")
        assert back.acquire(world.clock())
        assert back.acquire(world.clock() - self.HOUR)
        assert other.acquire(world.clock())
        with pytest.raises(LeaseLostError), back.write():
            pytest.fail("two lead")
        for _ in range(3):
            assert not back.acquire(world.clock() - self.HOUR)
            world.clock.advance(5)
        assert back.acquire(world.clock() - self.HOUR), "the other has not renewed it since"

    def test_clock_set_back_while_waiting_does_not_restart_the_wait(self, world: World) -> None:
        ahead, other = LeaderLease(world.database, "ahead"), LeaderLease(world.database, "other")
        assert ahead.acquire(world.clock() + self.HOUR)
        assert not other.acquire(world.clock())
        assert not other.acquire(world.clock() - self.HOUR)
        world.clock.advance(15)
        assert other.acquire(world.clock() - self.HOUR)


def test_the_run_of_an_ended_attempt_is_stopped_before_the_next_starts(world: World) -> None:
    world.scheduler.name = "slurm"
    job = world.submit()
    worker = world.start(job)
    world.clock.advance(60)
    world.scheduler.states.clear()
    world.tick()
    assert world.status(job) == "lost"
    assert world.client.post(f"/v1/jobs/{job}/resolve", json={"action": "resubmit"}).status_code == 202
    assert world.status(job) == "queued"
    assert worker.post("heartbeat", {"execution": 1}).json() == CANCEL


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_an_outage_of_the_service_does_not_make_a_worker_lost(world: World, verb: str) -> None:
    """The service was down for two hours, and the scheduler does not list the job after its return."""
    job = world.submit()
    world.start(job)
    world.scheduler.states.clear()
    world.clock.advance(7200)
    world.reconciler = world.new_reconciler("one")
    world.client.post(f"/v1/jobs/{job}/{verb}")
    world.tick(3)
    assert world.status(job) == {"cancel": "cancelling", "pause": "pausing"}[verb]
    world.clock.advance(600)
    world.tick()
    assert world.status(job) == {"cancel": "cancelled", "pause": "paused"}[verb]


def test_a_cancelled_job_that_is_not_listed_yet_is_removed_from_the_queue(world: World) -> None:
    job = world.submit()
    world.tick()
    world.scheduler.states.clear()
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.tick()
    assert (world.status(job), len(world.scheduler.cancelled)) == ("cancelled", 1)
