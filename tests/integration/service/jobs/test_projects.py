"""Projects group jobs, and jobs get the names that their programs use, where nobody has chosen others."""

import html
import re
from typing import Any
from urllib.parse import unquote_plus

import pytest

from tests.integration.service.attempts.test_parameters import send
from tests.support.world import World
from trainyard.contract.base import MAX_DISPLAY_NAME

PROGRAM = {"version": 1, "task": "script", "argv": ["/opt/train.py"], "name": "train"}


def submit(world: World, **changes: Any) -> str:
    response = world.client.post("/v1/jobs", json={**PROGRAM, **changes})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


def listed(world: World, **query: str) -> list[str]:
    return [job["id"] for job in world.client.get("/v1/jobs", params={"order": "asc", **query}).json()["data"]]


def names(world: World, job: str) -> tuple[str, str | None]:
    document = world.job(job)
    return document["name"], document["project"]


def edits(world: World, job: str) -> list[str]:
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"][::-1]
    return [event["message"] for event in events if event["type"] == "edited"]


def test_jobs_are_filtered_sorted_and_shown_by_project(world: World) -> None:
    first, second, third = submit(world, project="b"), submit(world), submit(world, project="a")
    assert listed(world, project="b") == [first]
    assert listed(world, where='project = "a"') == [third]
    assert listed(world, where='project in ("a", "b")') == [first, third]
    assert listed(world, where="not exists project") == [second]
    rows = world.client.get("/v1/jobs", params={"sort": "project", "columns": "project"}).json()["data"]
    assert [row["values"]["project"] for row in rows] == ["a", "b", None]


def test_job_is_moved_to_another_project_and_out_of_it(world: World) -> None:
    job = submit(world)
    for project, expected in (("digits", "digits"), ("digits", "digits"), ("", None)):
        response = world.client.patch(f"/v1/jobs/{job}", json={"project": project})
        assert (response.status_code, response.json()["project"]) == (200, expected)
    assert edits(world, job) == ["Moved to project 'digits' by admin", "Taken out of its project by admin"]


@pytest.mark.parametrize(
    ("spec", "tags", "expected"),
    [
        ({}, {"run": "lr-3e-4", "project": "digits"}, ("lr-3e-4", "digits")),
        ({"name": "mine"}, {"run": "lr-3e-4", "project": "digits"}, ("mine", "digits")),
        ({"project": "mine"}, {"run": "lr-3e-4", "project": "digits"}, ("lr-3e-4", "mine")),
        (
            {"project": "repo", "metadata": {"git_repository": "repo"}},
            {"project": "digits"},
            ("train", "digits"),
        ),
        ({}, {"inner/run": "inner", "inner/project": "digits"}, ("train", None)),
        ({}, {"run": "a\nb\u202e", "project": "\n"}, ("ab", None)),
        ({}, {"run": "n" * 500}, ("n" * MAX_DISPLAY_NAME, None)),
    ],
)
def test_program_names_its_job(
    world: World, spec: dict[str, Any], tags: dict[str, str], expected: tuple[str, str | None]
) -> None:
    job = submit(world, **spec)
    send(world.start(job), tags=tags)
    assert names(world, job) == expected
    assert world.job(job)["tags"] == tags


def test_names_that_a_user_has_changed_stay(world: World) -> None:
    job = submit(world)
    worker = world.start(job)
    send(worker, tags={"run": "first", "project": "digits"})
    assert edits(world, job) == ["Renamed from 'train' to 'first'; moved to project 'digits' by its program"]
    world.client.patch(f"/v1/jobs/{job}", json={"name": "best", "project": ""})
    send(worker, tags={"run": "second", "project": "letters"})
    assert names(world, job) == ("best", None)
    assert listed(world, name="best") == [job]


def test_page_of_a_job_leads_to_the_jobs_of_its_project(world: World) -> None:
    name = 'a "b" \\ <c>'
    job, _ = submit(world, project=name), submit(world)
    browser = world.new_client(None)
    browser.post("/sign-in", data={"token": world.token}, headers={"Origin": "http://localhost"})
    link = re.search(r'project <a href="/jobs\?where=([^"]*)">([^<]*)</a>', browser.get(f"/jobs/{job}").text)
    assert link is not None
    assert html.unescape(link[2]) == name
    assert listed(world, where=unquote_plus(link[1])) == [job]
