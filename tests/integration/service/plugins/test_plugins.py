"""Plugins can be switched off, and the rest of the service then works without them."""

import html
import itertools
import json
import re
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from service.core.errors import InvalidRequestError
from service.core.periodic_task import PeriodicTask
from service.db.models import Delivery
from service.diagnostics.checks import run_checks
from service.main import background_services
from service.maintenance.task import MaintenanceTask
from service.plugins.installed import PLUGINS, select_plugins
from service.plugins.webhooks.part import part_of
from service.reconciler.poll_loop import ReconcileLoop
from tests.support.shared_parts import app_with_shared_routes
from tests.support.world import SPEC, World
from trainyard.cli.app import app as cli
from trainyard.cli.errors import NOT_FOUND
from trainyard.client import Client
from trainyard.contract.http import API_HEADER, API_VERSION

pytestmark = pytest.mark.databases("sqlite")

ADDRESSES = {
    "mlflow": "/mlflow/version",
    "oidc": "/v1/oidc-users",
    "openai": "/openai/v1/models",
    "planner": "/v1/start-estimates/est_none",
    "registry": "/v1/models",
    "sweeps": "/v1/sweeps",
    "webhooks": "/v1/webhooks",
}


def client_of(world: World, *disabled: str) -> TestClient:
    """Return the administrator's client of an application without the disabled plugins."""
    app = app_with_shared_routes(world.app_state, *select_plugins(disabled))
    client = TestClient(app, base_url="http://127.0.0.1:8470", raise_server_exceptions=False)
    client.headers["Authorization"] = f"Bearer {world.token}"
    return client


def browser_of(client: TestClient, world: World) -> TestClient:
    """Return the client, signed in as a browser."""
    del client.headers["Authorization"]
    client.headers["Accept"] = "text/html"
    origin = {"Origin": str(client.base_url)}
    answer = client.post("/sign-in", data={"token": world.token}, headers=origin, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return client


def parts_of(page: httpx.Response) -> tuple[dict[str, str], list[Any]]:
    """Return the pages of resources and the shortcuts that the scripts of a page get from plugins."""
    (embedded,) = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', page.text)
    document = json.loads(embedded)
    return document["pages"], document["shortcuts"]


def stderr_of(client: TestClient, *command: str) -> str:
    """Run a command of the command line that fails, and return what it prints."""

    def answer(request: httpx.Request) -> httpx.Response:
        received = client.request(request.method, request.url.raw_path.decode(), content=request.content)
        return httpx.Response(received.status_code, headers={API_HEADER: API_VERSION}, content=received.content)

    def connect() -> Client:
        return Client("http://localhost", "token", transport=httpx.MockTransport(answer))

    done = CliRunner().invoke(cli, command, obj=connect)
    assert done.exit_code == NOT_FOUND, (done.stdout, done.stderr, done.exception)
    return done.stderr


@pytest.mark.databases("sqlite", "postgres")
@pytest.mark.parametrize("name", [plugin.name for plugin in PLUGINS])
def test_a_disabled_plugin_has_no_routes(world: World, name: str) -> None:
    client = client_of(world, name)
    for plugin, address in ADDRESSES.items():
        assert ("plugin_disabled" in client.get(address).text) == (plugin == name)
    assert client.get("/v1/none").json()["error"]["code"] == "route_not_found", "only its own paths"


@pytest.mark.parametrize("name", [plugin.name for plugin in PLUGINS])
def test_clients_of_a_disabled_plugin_read_why(world: World, name: str) -> None:
    client = client_of(world, name)
    for method, rest in itertools.product(("GET", "POST", "DELETE"), ("", "/none")):
        answer = client.request(method, ADDRESSES[name] + rest)
        assert answer.status_code == 404
        assert answer.json() == {
            "error": {
                "message": f"the plugin `{name}` is switched off on this service, by its setting "
                "TRAINYARD_DISABLED_PLUGINS",
                "type": "not_found_error",
                "param": None,
                "code": "plugin_disabled",
            }
        }, "in the form of the API itself"


def test_the_command_line_prints_that_webhooks_are_off(world: World) -> None:
    line = "error: the plugin `webhooks` is switched off on this service, by its setting TRAINYARD_DISABLED_PLUGINS\n"
    client = client_of(world, "webhooks")
    assert stderr_of(client, "webhooks", "list") == line
    assert stderr_of(client, "webhooks", "create", "https://example.org/hook") == line


def test_other_paths_with_the_same_beginning_stay_unknown(world: World) -> None:
    client = client_of(world, *ADDRESSES)
    for path in ("/v1/webhooksuffix", "/v1", "/openai", "/mlflows/version", "/admin/webhooks2"):
        assert client.get(path).json()["error"]["code"] == "route_not_found", path


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


def task_names(world: World, *disabled: str) -> set[str]:
    """Return the names of the tasks that a service would start in the background."""
    services = background_services(world.app_state, world.scheduler, *select_plugins(disabled))
    return {one.name for one in services if isinstance(one, PeriodicTask)}


@pytest.mark.parametrize("name", ["sweeps", "webhooks"])
def test_a_disabled_plugin_has_no_background_tasks(world: World, name: str) -> None:
    assert task_names(world) - task_names(world, name) == {name}
    assert task_names(world, *ADDRESSES) >= {"maintenance", "values"}


@pytest.mark.parametrize("disabled", [(), ("sweeps",)])
def test_a_change_of_a_job_wakes_what_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch, disabled: tuple[str, ...]
) -> None:
    woken: list[str] = []
    monkeypatch.setattr(PeriodicTask, "notify", lambda task: woken.append(task.name))
    monkeypatch.setattr(ReconcileLoop, "hint", lambda loop: woken.append("reconciler"))
    background_services(world.app_state, world.scheduler, *select_plugins(disabled))
    world.submit()
    assert woken == ["reconciler", *(["sweeps"] if not disabled else [])]


def deliveries(world: World) -> list[Any]:
    with world.database.read() as session:
        return list(session.query(Delivery))


def test_a_disabled_plugin_writes_nothing(world: World) -> None:
    part_of(world.app_state).resolver = lambda host, port, owner: ["93.184.216.34"]
    assert world.client.post("/v1/webhooks", json={"url": "https://example.org/hook"}).status_code == 201
    client_of(world, "webhooks")
    world.start(world.submit()).end("completed")
    world.tick()
    assert deliveries(world) == []
    client_of(world)
    world.submit()
    (written,) = deliveries(world)
    assert written.type == "job.status"


@pytest.mark.databases("sqlite", "postgres")
def test_rows_of_a_disabled_plugin_end_with_their_retention(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    part_of(world.app_state).resolver = lambda host, port, owner: ["93.184.216.34"]
    world.client.post("/v1/webhooks", json={"url": "https://example.org/hook"})
    world.submit()
    made: list[MaintenanceTask] = []

    def make(*parts: Any) -> MaintenanceTask:
        made.append(MaintenanceTask(*parts))
        return made[0]

    monkeypatch.setattr("service.maintenance.task.MaintenanceTask", make)
    background_services(world.app_state, world.scheduler, *select_plugins(["webhooks"]))
    for days, left in ((29, 1), (2, 0)):
        world.clock.advance(days * 86_400)
        made[0].lease.acquire(world.clock())
        made[0].run_once()
        assert len(deliveries(world)) == left


@pytest.mark.databases("sqlite", "postgres")
@pytest.mark.parametrize(("name", "path"), [("registry", "/models"), ("webhooks", "/admin/webhooks")])
def test_pages_of_a_disabled_plugin_are_hidden(world: World, name: str, path: str) -> None:
    page = browser_of(client_of(world), world).get("/admin")
    assert page.text.count(f'href="{path}"') == 1
    assert set(parts_of(page)[0]) == {"model", "sweep"}
    browser = browser_of(client_of(world, name), world)
    page = browser.get("/admin")
    assert page.status_code == 200
    assert f'href="{path}"' not in page.text
    assert ("model" in parts_of(page)[0]) == (name != "registry")
    assert 'href="/admin/audit"' in page.text
    gone = browser.get(path)
    assert gone.status_code == 404
    assert "TRAINYARD_DISABLED_PLUGINS" in gone.text


@pytest.mark.databases("sqlite", "postgres")
def test_the_pages_of_the_core_work_without_plugins(world: World) -> None:
    job = world.submit()
    browser = browser_of(client_of(world, *ADDRESSES), world)
    of_job = (f"/jobs/{job}", f"/compare?job={job}", f"/submit?fork={job}")
    for path in ("/jobs", "/compare", "/submit", "/files", "/cluster", "/help", *of_job):
        page = browser.get(path)
        assert (page.status_code, parts_of(page)) == (200, ({}, [])), path


@pytest.mark.databases("sqlite", "postgres")
def test_members_of_a_sweep_are_ordinary_jobs_without_the_plugin(world: World) -> None:
    body = {"spec": SPEC, "members": [{"optimizer.lr": 0.1}, {"optimizer.lr": 0.2}], "max_parallel": 1}
    sweep = world.client.post("/v1/sweeps", json=body).json()
    job = sweep["members"][1]["job_id"]
    browser = browser_of(client_of(world, "sweeps"), world)
    page = browser.get(f"/jobs/{job}")
    assert "optimizer.lr=0.2" in page.text
    for path in (f"/jobs/{job}", "/jobs", f"/jobs?sweep={sweep['id']}", "/compare", "/submit"):
        page = browser.get(path)
        assert page.status_code == 200
        assert "/compare?sweep=" not in page.text
        assert not re.search(r'id="sweep"|group=sweep|sweep_form', page.text), path
    gone = browser.get(f"/compare?sweep={sweep['id']}")
    assert gone.status_code == 404
    assert "the plugin `sweeps` is switched off" in html.unescape(gone.text)
    world.tick()
    assert [world.status(one["job_id"]) for one in sweep["members"]] == ["pending", "queued"], "the limit is in force"
    for with_plugin, path in ((True, "/compare"), (True, "/admin/audit"), (False, "/admin/audit")):
        page = browser_of(client_of(world, *([] if with_plugin else ["sweeps"])), world).get(path)
        assert page.status_code == 200
        assert (f'href="/compare?sweep={sweep["id"]}"' in page.text) == with_plugin, path


def test_the_api_is_described_without_plugins(world: World) -> None:
    paths = client_of(world, *ADDRESSES).get("/openapi.json").json()["paths"]
    assert "/v1/jobs" in paths
    assert not [path for path in paths if path.startswith(("/v1/models", "/v1/sweeps", "/v1/webhooks"))]


def test_jobs_run_without_plans(world: World) -> None:
    client = client_of(world, "planner")
    world.reconciler = world.new_reconciler("two", disabled=("planner",))
    huge = {"source": "builtin", "name": "mlp", "sizes": [2, 200_000, 200_000, 3]}
    spec = {**SPEC, "model": huge, "gpus": 2, "strategy": "auto"}
    for path in ("/v1/plans", "/v1/plans/data"):
        assert client.post(path, json=spec).json()["error"]["code"] == "plugin_disabled", path
    job = client.post("/v1/jobs", json=spec).json()
    assert job["spec"]["strategy"] == "ddp"
    world.tick()
    assert world.status(job["id"]) == "pending", "nothing checks its memory"
    page = browser_of(client, world).get("/submit").text
    assert 'id="submit"' in page
    assert not re.search(r'id="(verdict|force|estimate-start)"|plan_panel', page)


def test_registered_models_protect_their_files_without_the_registry(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.checkpoint(5)
    worker.end("completed")
    world.tick()
    body = {"job_id": job, "checkpoint": 5}
    assert world.client.post("/v1/models/m/versions", json=body).status_code == 201
    client = client_of(world, "registry")
    assert client.get(f"/v1/jobs/{job}/lineage").json()["versions"] == [{"model": "m", "version": 1, "step": 5}]
    assert client.delete(f"/v1/jobs/{job}").json()["error"]["code"] == "job_registered"
    assert client_of(world).get("/v1/models/m").json()["latest_version"] == 1


def test_an_unknown_name_of_a_plugin_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="'mlfow' is not one of mlflow, oidc, openai, planner, registry"):
        select_plugins(["mlfow"])


def test_plugins_have_different_names_and_paths() -> None:
    assert len({plugin.name for plugin in PLUGINS}) == len(PLUGINS)
    assert not [
        (one.name, other.name)
        for one in PLUGINS
        for other in PLUGINS
        if one is not other and any(prefix.startswith(tuple(other.prefixes)) for prefix in one.prefixes)
    ]
