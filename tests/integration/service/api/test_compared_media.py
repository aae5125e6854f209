"""The media of several jobs: their keys and steps."""

import pytest

from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite", "postgres")
TIME = "2026-01-01T00:00:00Z"


def job_with_media(world: World, *steps: int, key: str = "samples") -> str:
    job = world.submit()
    worker = world.start(job)
    items = [
        {
            "key": key,
            "step": step,
            "position": position,
            "type": "image",
            "path": f"{step}_{position}.png",
            "time": TIME,
        }
        for step in steps
        for position in (0, 1)
    ]
    if items:
        assert worker.post("media", {"execution": 1, "items": items}).status_code == 200
    return job


def test_each_job_has_its_keys_and_steps_in_the_order_of_the_request(world: World) -> None:
    first, second, empty = job_with_media(world, 20, 10), job_with_media(world, 5, key="größe"), job_with_media(world)
    jobs = {"job": [second, empty, first]}
    keys = world.client.get("/v1/media/keys", params=jobs).json()["data"]
    assert [(one["job_id"], [key["key"] for key in one["data"]]) for one in keys] == [
        (second, ["größe"]),
        (empty, []),
        (first, ["samples"]),
    ]
    steps = world.client.get("/v1/media/steps", params={**jobs, "key": "samples"}).json()["data"]
    assert [(one["job_id"], one["steps"]) for one in steps] == [(second, []), (empty, []), (first, [10, 20])]


@pytest.mark.parametrize(("path", "query"), [("/v1/media/keys", {}), ("/v1/media/steps", {"key": "samples"})])
def test_unknown_and_repeated_jobs_are_refused(world: World, path: str, query: dict[str, str]) -> None:
    job = job_with_media(world, 1)
    missing = world.client.get(path, params={**query, "job": [job, "job_" + "0" * 26]})
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "job")
    assert world.client.get(path, params={**query, "job": [job, job]}).status_code == 422
    assert world.client.get(path, params={**query, "job": [f"job_{n:026}" for n in range(21)]}).status_code == 422
