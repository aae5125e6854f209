"""The text from which the page for a new job starts."""

from typing import Any

import yaml

from service.jobs.listing import free_name
from service.web.pages.submit import origin_spec
from tests.support.world import World


def start(world: World, job: str, *, fork: bool = False, longer: bool = False) -> tuple[dict[str, Any], str]:
    """The source of the text, and the text."""
    given: dict[str, Any] = {"fork": job, "copy": None} if fork else {"fork": None, "copy": job}
    source, text = origin_spec(world.app_state, world.clock(), **given, is_longer=longer, changes=())
    assert source is not None
    return source, text


def test_copy_has_a_name_that_no_job_has(world: World) -> None:
    names = ("run", "gpt-2", "run-2")
    for name in names:
        world.submit(name=name)
    free = [free_name(world.app_state.database, name, world.clock()) for name in (*names, "other")]
    assert free == ["run-3", "gpt-2-2", "run-3", "other-2"]


def test_copy_records_its_source_and_can_be_twice_as_long(world: World) -> None:
    job = world.submit(name="run", steps=20, metadata={"team": "nlp"})
    source, text = start(world, job)
    copied = yaml.safe_load(text)
    assert (copied["name"], copied["steps"]) == ("run-2", 20)
    assert copied["metadata"] == {"team": "nlp", "forked_from": job}
    assert (source["step"], source["length"]) == (None, None)
    _, text = start(world, job, longer=True)
    assert text.startswith("# `steps` is doubled: 40 instead of 20.\n")
    assert yaml.safe_load(text)["steps"] == 40


def test_fork_without_a_checkpoint_starts_from_scratch(world: World) -> None:
    source, text = start(world, world.submit(name="run"), fork=True)
    assert "resume_from" not in yaml.safe_load(text)
    assert source["length"] is None
