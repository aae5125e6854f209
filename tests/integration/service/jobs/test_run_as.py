"""Which Unix account a job gets when it is submitted."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.db.models import Delivery, Job, UnixUser
from service.plugins.webhooks.part import part_of
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")

ADA = 4711
SWEEP = {"spec": SPEC, "grid": {"seed": [1, 2]}}


@pytest.fixture
def owners(database_url: str, tmp_path: Path) -> Iterator[World]:
    """Return a service whose jobs run as their owners; the user `ada` has a Unix account."""
    world = World(database_url, tmp_path / "state", run_as="owner")
    with world.database.write() as session:
        session.add(UnixUser(name="ada", uid=ADA, created_at=world.clock()))
    yield world
    world.database.dispose()


def accounts(world: World) -> set[int | None]:
    with world.database.read() as session:
        return set(session.scalars(sa.select(Job.unix_uid)))


def test_jobs_of_a_user_with_an_account_run_as_that_account(owners: World) -> None:
    ada = owners.new_user("user", "ada")
    assert ada.post("/v1/jobs", json=SPEC).status_code == 201
    assert ada.post("/v1/sweeps", json=SWEEP).status_code == 201
    assert accounts(owners) == {ADA}


@pytest.mark.parametrize(("path", "body"), [("/v1/jobs", SPEC), ("/v1/sweeps", SWEEP)], ids=["job", "sweep"])
def test_user_without_an_account_is_refused_with_the_remedy(owners: World, path: str, body: object) -> None:
    answer = owners.new_user("user", "bob").post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "unix_account_required")
    assert "trainyard tokens link bob" in answer.json()["error"]["message"]
    assert accounts(owners) == set()


def test_jobs_run_as_the_service_by_default(world: World) -> None:
    assert world.client.post("/v1/jobs", json=SPEC).status_code == 201
    assert accounts(world) == {None}


def test_webhooks_of_users_get_no_jobs_of_others(owners: World) -> None:
    part_of(owners.app_state).resolver = lambda host, port, owner: ["93.184.216.34"]
    ada, bob = owners.new_user("user", "ada"), owners.new_user("user", "bob")
    hooks = {}
    for name, client in (("ada", ada), ("bob", bob), ("admin", owners.client)):
        answer = client.post("/v1/webhooks", json={"url": f"https://{name}.example", "jobs": "all"})
        assert answer.status_code == 201, answer.text
        hooks[name] = answer.json()["id"]
    assert ada.post("/v1/jobs", json=SPEC).status_code == 201
    with owners.database.read() as session:
        receivers = set(session.scalars(sa.select(Delivery.webhook_id)))
    assert receivers == {hooks["ada"], hooks["admin"]}
