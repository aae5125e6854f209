"""Job lists: filters, and pages that are stable under inserts."""

from typing import Any

import pytest

from tests.support.world import World


@pytest.fixture
def jobs(world: World) -> list[str]:
    """Five, a minute apart: two teams, two names."""
    made = []
    for number in range(5):
        team = "nlp" if number % 2 else "vision"
        made.append(world.submit(name=f"run {number % 2}", metadata={"team": team, "number": str(number)}))
        world.clock.advance(60)
    return made


def listed(world: World, **params: Any) -> list[str]:
    answer = world.client.get("/v1/jobs", params=params)
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["data"]]


def test_filters_alone_and_combined(world: World, jobs: list[str]) -> None:
    world.client.post(f"/v1/jobs/{jobs[4]}/cancel")
    world.reconciler.run_once()
    odd = [jobs[3], jobs[1]]
    assert listed(world, name="run 1") == odd
    assert listed(world, **{"metadata[team]": "nlp"}) == odd
    assert listed(world, **{"metadata[team]": "nlp", "metadata[number]": "3", "name": "run 1"}) == [jobs[3]]
    assert listed(world, status=["cancelled", "pending"]) == jobs[::-1]
    assert listed(world, status="cancelled") == [jobs[4]]
    assert listed(world, status=["pending", "pending"], order="asc", **{"metadata[team]": "vision"}) == [
        jobs[0],
        jobs[2],
    ]
    assert listed(world, created_by="nobody") == []


def test_creation_times_are_inclusive_from_exclusive_until(world: World, jobs: list[str]) -> None:
    moments = [world.job(job)["created_at"] for job in jobs]
    assert listed(world, created_after=moments[3]) == [jobs[4], jobs[3]]
    assert listed(world, created_before=moments[2]) == [jobs[1], jobs[0]]
    assert listed(world, created_after=moments[1], created_before=moments[3]) == [jobs[2], jobs[1]]
    for far in ("9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00+14:00"):
        for name in ("created_after", "created_before"):
            refused = world.client.get("/v1/jobs", params={name: far})
            assert (refused.status_code, refused.json()["error"]["param"]) == (422, name)
    assert world.client.get("/v1/jobs?created_after=2026-11-22T10:00:00+00:00").status_code == 200
    refused = world.client.get("/v1/jobs", params={"created_after": "yesterday"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "created_after")


def test_pages_do_not_shift_under_inserts(world: World, jobs: list[str]) -> None:
    for params in ({}, {"status": ["queued", "running"]}, {"metadata[team]": "vision"}):
        page = world.client.get("/v1/jobs", params={**params, "limit": 2}).json()
        world.submit(metadata={"team": "vision"})
        world.clock.advance(1)
        rest = world.client.get("/v1/jobs", params={**params, "limit": 2, "after": page["last_id"]}).json()
        ids = [job["id"] for job in page["data"] + rest["data"]]
        assert page["has_more"]
        assert ids == sorted(set(ids), reverse=True)
        assert len(ids) in (3, 4)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_several_statuses_are_merged_in_order(world: World, jobs: list[str], order: str) -> None:
    for job in jobs[::2]:
        world.client.post(f"/v1/jobs/{job}/cancel")
    world.tick(3)
    assert {world.status(job) for job in jobs} == {"cancelled", "pending"}
    expected = jobs if order == "asc" else jobs[::-1]
    for labels in ({}, {"metadata[team]": "vision"}):
        remaining = [job for job in expected if not labels or jobs.index(job) % 2 == 0]
        params: dict[str, Any] = {"status": ["pending", "cancelled", "lost"], "order": order, "limit": 2, **labels}
        while True:
            page = world.client.get("/v1/jobs", params=params).json()
            assert [job["id"] for job in page["data"]] == remaining[:2]
            remaining = remaining[2:]
            assert page["has_more"] == bool(remaining)
            if not remaining:
                break
            params["after"] = page["last_id"]


def test_more_labels_than_a_spec_may_have_match_nothing(world: World, jobs: list[str]) -> None:
    assert listed(world, **{f"metadata[key{number}]": "x" for number in range(100)}) == []


@pytest.mark.parametrize("value", ["%", "run_1", "run%", "' OR 1=1 --", "run 1'"])
def test_filters_have_no_wildcards(world: World, jobs: list[str], value: str) -> None:
    assert listed(world, name=value) == []
    assert listed(world, **{"metadata[team]": value}) == []
    assert listed(world, **{f"metadata[{value}]": "nlp"}) == []
