"""The bucket of one token."""

from datetime import UTC, datetime, timedelta

from service.api.rate_limits import Buckets, Rate

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_burst_then_the_rate() -> None:
    buckets = Buckets(Rate(per_second=2, burst=3))
    taken = [buckets.take("a", START) for _ in range(4)]
    assert [one.allowed for one in taken] == [True, True, True, False]
    assert [one.remaining for one in taken] == [2, 1, 0, 0]
    assert taken[-1].retry_seconds == 1
    assert not buckets.take("a", START + timedelta(seconds=0.4)).allowed
    assert buckets.take("a", START + timedelta(seconds=0.5)).allowed


def test_keys_do_not_share() -> None:
    buckets = Buckets(Rate(per_second=1, burst=1))
    assert buckets.take("a", START).allowed
    assert buckets.take("b", START).allowed
    assert not buckets.take("a", START).allowed


def test_it_never_holds_more_than_the_burst_and_a_clock_set_back_takes_nothing() -> None:
    buckets = Buckets(Rate(per_second=1, burst=2))
    buckets.take("a", START)
    later = START + timedelta(days=1)
    assert buckets.take("a", later).remaining == 1
    assert buckets.take("a", START).remaining == 0


def test_its_memory_is_bounded() -> None:
    buckets = Buckets(Rate(per_second=1, burst=1))
    for number in range(10_001):
        buckets.take(str(number), START)
    assert not buckets.take("10000", START).allowed
    assert buckets.take("0", START).allowed, "the one used longest ago is forgotten"
