"""The token bucket of one API token."""

from datetime import UTC, datetime, timedelta

from service.api.rate_limits import Rate, RateLimiter

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_burst_then_sustained_rate() -> None:
    limiter = RateLimiter(Rate(per_second=2, burst=3))
    taken = [limiter.acquire("a", START) for _ in range(4)]
    assert [one.allowed for one in taken] == [True, True, True, False]
    assert [one.remaining for one in taken] == [2, 1, 0, 0]
    assert taken[-1].retry_seconds == 1
    assert not limiter.acquire("a", START + timedelta(seconds=0.4)).allowed
    assert limiter.acquire("a", START + timedelta(seconds=0.5)).allowed


def test_keys_have_separate_buckets() -> None:
    limiter = RateLimiter(Rate(per_second=1, burst=1))
    assert limiter.acquire("a", START).allowed
    assert limiter.acquire("b", START).allowed
    assert not limiter.acquire("a", START).allowed


def test_bucket_is_capped_and_survives_a_clock_step_back() -> None:
    limiter = RateLimiter(Rate(per_second=1, burst=2))
    limiter.acquire("a", START)
    later = START + timedelta(days=1)
    assert limiter.acquire("a", later).remaining == 1
    assert limiter.acquire("a", START).remaining == 0


def test_number_of_keys_is_bounded() -> None:
    limiter = RateLimiter(Rate(per_second=1, burst=1))
    for number in range(10_001):
        limiter.acquire(str(number), START)
    assert not limiter.acquire("10000", START).allowed
    assert limiter.acquire("0", START).allowed, "the one used longest ago is forgotten"
