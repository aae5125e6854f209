"""Plugins can be switched off, and the rest of the service then works without them."""

import pytest
from fastapi.testclient import TestClient

from service.core.errors import InvalidRequestError
from service.diagnostics.checks import run_checks
from service.plugins.installed import PLUGINS, enabled_plugins
from service.web.app import create_app
from tests.support.world import World

ADDRESSES = {"mlflow": "/mlflow/version", "openai": "/openai/v1/models"}


def client_of(world: World, *disabled: str) -> TestClient:
    """Return the administrator's client of an application that has its own routes."""
    app = create_app(world.app_state, enabled_plugins(disabled))
    client = TestClient(app, base_url="http://127.0.0.1:8470", raise_server_exceptions=False)
    client.headers["Authorization"] = f"Bearer {world.token}"
    return client


@pytest.mark.parametrize("name", [plugin.name for plugin in PLUGINS])
def test_a_disabled_plugin_has_no_routes(world: World, name: str) -> None:
    client = client_of(world, name)
    for plugin, address in ADDRESSES.items():
        answer = client.get(address)
        assert answer.status_code == (404 if plugin == name else 200)
    assert client.get(ADDRESSES[name]).json()["error"]["code"] == "route_not_found", "in the form of the API itself"


def test_the_service_works_without_plugins(world: World) -> None:
    client = client_of(world, *ADDRESSES)
    job = world.submit()
    assert client.get(f"/v1/jobs/{job}").json()["status"] == "queued"
    assert client.get("/v1/jobs/none").json()["error"]["code"] == "job_not_found"
    assert client.post("/v1/jobs", content="{").json()["error"]["code"] == "invalid_json"
    assert client.get("/jobs", headers={"Accept": "text/html"}).status_code in (200, 303)
    names = {finding["name"] for finding in client.get("/v1/doctor").json()["findings"]}
    assert "database" in names
    assert "models" not in names


def test_the_check_of_a_plugin_is_a_part_of_doctor(world: World) -> None:
    names = {finding["name"] for finding in world.client.get("/v1/doctor").json()["findings"]}
    assert "models" in names
    assert "models" not in {finding.name for finding in run_checks(world.settings)}


def test_an_unknown_name_of_a_plugin_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="'mlfow' is not one of mlflow, openai"):
        enabled_plugins(["mlfow"])


def test_plugins_have_different_names_and_paths() -> None:
    assert len({plugin.name for plugin in PLUGINS}) == len(PLUGINS)
    assert not [
        (one.name, other.name)
        for one in PLUGINS
        for other in PLUGINS
        if one is not other and one.prefix.startswith(other.prefix)
    ]
