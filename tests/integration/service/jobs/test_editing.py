"""Names, tags, notes and the archive: what users change of a job."""

from typing import Any

from tests.integration.service.jobs.test_table import listed
from tests.support.world import World


def edit(world: World, job: str, status: int = 200, **changes: Any) -> dict[str, Any]:
    answer = world.client.patch(f"/v1/jobs/{job}", json=changes)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_tags_and_notes_of_a_user_stay_when_the_program_reports(world: World) -> None:
    job = world.submit(name="one")
    worker = world.start(job)
    worker.post("parameters", {"execution": 1, "tags": {"stage": "dev", "auto": ""}, "notes": "by the program"})
    edited = edit(world, job, tags={"stage": "prod", "baseline": "", "auto": None}, notes="**mine**", name="two")
    assert (edited["name"], edited["notes"]) == ("two", "**mine**")
    assert edited["tags"] == {"stage": "prod", "baseline": ""}
    worker.post("parameters", {"execution": 1, "tags": {"stage": "dev"}, "notes": "again"})
    after = world.job(job)
    assert (after["tags"]["stage"], after["notes"]) == ("prod", "**mine**")
    assert listed(world, where='tag = baseline and tags.stage = "prod" and name = two') == ["two"]
    assert listed(world, where="tag = auto or tags = auto") == []
    assert listed(world, where="tags ~ base and tags is not empty") == ["two"]
    assert edit(world, job, notes="")["notes"] is None
    events = world.client.get(f"/v1/jobs/{job}/events").json()["data"]
    messages = [event["message"] for event in events if event["type"] == "edited"]
    assert (
        messages[1] == "Renamed from 'one' to 'two'; tagged stage, baseline; tags removed: auto; notes changed by admin"
    )


def test_an_edit_without_effect_leaves_no_event(world: World) -> None:
    job = world.submit(name="one")
    edit(world, job, name="one", tags={"missing": None}, notes="")
    events = world.client.get(f"/v1/jobs/{job}/events").json()["data"]
    assert all(event["type"] != "edited" for event in events)


def test_archived_jobs_are_listed_on_request_only(world: World) -> None:
    current, old = world.submit(name="current"), world.submit(name="old")
    edit(world, old, 409, archived=True)
    world.client.post(f"/v1/jobs/{old}/cancel")
    world.reconciler.run_once()
    assert edit(world, old, archived=True)["archived"] is True
    assert listed(world) == ["current"]
    assert listed(world, where="name ~ o or name ~ c") == ["current"]
    assert listed(world, archived="only") == ["old"]
    assert listed(world, archived="all", sort="name") == ["current", "old"]
    assert listed(world, where="archived = true") == ["old"]
    assert world.client.post(f"/v1/jobs/{old}/retry").status_code == 202
    assert listed(world) == ["old", "current"], "a retry takes a job out of the archive"
    assert world.job(current)["archived"] is False


def test_limits_and_malformed_changes_are_refused(world: World) -> None:
    job = world.submit()
    edit(world, job)
    edit(world, job, 422, name="")
    edit(world, job, 422, tags={"": "x"})
    edit(world, job, 422, notes="x" * 20_001)
    for start in range(0, 1000, 100):
        edit(world, job, tags={f"t{number}": "" for number in range(start, start + 100)})
    assert edit(world, job, 422, tags={"one-more": ""})["error"]["code"] == "too_many_tags"
    edit(world, job, tags={"t0": None, "one-more": ""})
