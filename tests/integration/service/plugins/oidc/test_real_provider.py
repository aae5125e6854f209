"""Sign-ins at a real provider, npm's `oidc-provider`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.live_service import RealTime
from tests.support.oidc_portal import PAGE, SERVICE, path_of, problem_of, user_of
from tests.support.oidc_provider import RealProvider, running_provider, sign_in_at_provider
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture(scope="module")
def provider() -> Iterator[RealProvider]:
    with running_provider(SERVICE) as running:
        yield running


@pytest.fixture
def world(database_url: str, tmp_path: Path, provider: RealProvider) -> Iterator[World]:
    made = World(database_url, tmp_path / "state", RealTime(), **provider.settings)
    yield made
    made.database.dispose()


def come_back(browser: TestClient, user: str) -> str:
    """Sign in at the provider, and return the path to which it sends the browser."""
    location = browser.get("/sign-in/oidc", follow_redirects=False).headers["location"]
    return path_of(sign_in_at_provider(location, user, SERVICE))


def finish(browser: TestClient, path: str) -> Any:
    return browser.get(path, headers=PAGE, follow_redirects=False)


@pytest.mark.parametrize(("user", "role"), [("ada", "admin"), ("bob", "user"), ("eve", "viewer")])
def test_real_provider_signs_users_in(world: World, user: str, role: str) -> None:
    browser = world.new_client(None)
    answer = finish(browser, come_back(browser, user))
    assert (answer.status_code, problem_of(answer)) == (303, "")
    assert user_of(browser) == (user, role)


def test_real_provider_accepts_a_code_once(world: World) -> None:
    browser = world.new_client(None)
    first = come_back(browser, "bob")
    assert finish(browser, first).status_code == 303
    second = come_back(browser, "bob")
    codes = [path.partition("code=")[2].partition("&")[0] for path in (first, second)]
    answer = finish(browser, second.replace(codes[1], codes[0]))
    assert "took too long, or was used before" in problem_of(answer)


def test_names_at_a_real_provider_are_merged_in_no_case(world: World) -> None:
    for user, status in (("bob", 303), ("mallory", 403)):
        browser = world.new_client(None)
        answer = finish(browser, come_back(browser, user))
        assert answer.status_code == status
    assert problem_of(answer).startswith("A user `Bob` exists here, who may be another person")


def test_wrong_secret_is_reported(database_url: str, tmp_path: Path, provider: RealProvider) -> None:
    settings = {**provider.settings, "oidc_client_secret": "wrong"}
    world = World(database_url, tmp_path / "state", RealTime(), **settings)
    browser = world.new_client(None)
    answer = finish(browser, come_back(browser, "bob"))
    assert "an administrator must check TRAINYARD_OIDC_CLIENT_ID" in problem_of(answer)
    world.database.dispose()
