"""The list of a job's attempts has pages: a job may have thousands."""

import pytest

from service.jobs.repository import JobRepository
from service.reconciler.submission.attempts import new_attempt
from tests.support.world import World
from trainyard.contract.spec.training_spec import parse_spec

pytestmark = pytest.mark.databases("sqlite")


def job_with_attempts(world: World, count: int) -> str:
    job_id = world.submit()
    now = world.clock()
    for _ in range(count):
        with world.database.write() as session:
            jobs = JobRepository(session, now)
            job = jobs.get(job_id)
            session.add(new_attempt(jobs, job, parse_spec(job.spec), instance="main", scheduler="local", now=now))
    return job_id


def test_attempts_are_listed_in_pages(world: World) -> None:
    path = f"/v1/jobs/{job_with_attempts(world, 25)}/attempts"
    first = world.client.get(path).json()
    assert ([row["number"] for row in first["data"]], first["has_more"]) == (list(range(1, 21)), True)
    second = world.client.get(path, params={"after": first["last_id"]}).json()
    assert ([row["number"] for row in second["data"]], second["has_more"]) == (list(range(21, 26)), False)
    newest = world.client.get(path, params={"order": "desc", "limit": 2}).json()
    assert [row["number"] for row in newest["data"]] == [25, 24]


@pytest.mark.parametrize(("after", "status"), [("0" * 16, 404), ("x", 422)])
def test_unknown_attempt_is_no_start_of_a_page(world: World, after: str, status: int) -> None:
    job = job_with_attempts(world, 1)
    answer = world.client.get(f"/v1/jobs/{job}/attempts", params={"after": after})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, "after")


def test_attempt_of_another_job_is_no_start_of_a_page(world: World) -> None:
    job, other = job_with_attempts(world, 1), job_with_attempts(world, 1)
    foreign = world.client.get(f"/v1/jobs/{other}/attempts").json()["last_id"]
    assert world.client.get(f"/v1/jobs/{job}/attempts", params={"after": foreign}).status_code == 404
