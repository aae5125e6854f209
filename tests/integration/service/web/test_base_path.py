"""A service whose public URL has a path: no page, redirect, script or cookie leads out of it."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

import service.web
from service.core.errors import InvalidRequestError
from service.plugins.installed import PLUGINS
from service.web.app import create_app
from tests.support.seeds import seed
from tests.support.shared_parts import SharedLoopClient
from tests.support.world import World

BASE = "/node/login1.example/8470"
ORIGIN = "https://portal.example"
DIRECT = "login1.example:8470"
STATIC = Path(service.web.__file__).parent / "static"
OUTSIDE = re.compile(r"^(#|https?://|$)")
OF_ELEMENTS = ("href", "src", "action", "formaction", "poster", "data", "srcset")


class Removing:
    """A proxy that removes the base path from requests, and answers nothing else."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"].startswith(BASE), f"{scope['path']} is outside of the base path"
        raw = scope["raw_path"].removeprefix(BASE.encode()) or b"/"
        await self._app({**scope, "path": scope["path"].removeprefix(BASE) or "/", "raw_path": raw}, receive, send)


class Addresses(HTMLParser):
    """The addresses in the elements of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.links: list[str] = []
        self.others: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in OF_ELEMENTS and not OUTSIDE.match(value or ""):
                (self.links if (tag, name) == ("a", "href") else self.others).append(value or "")


@pytest.fixture(scope="module")
def base_world(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("base")
    (folder / "yard.sqlite").write_bytes(migrated_sqlite.read_bytes())
    urls = {"public_url": f"{ORIGIN}{BASE}/", "worker_url": f"http://{DIRECT}"}
    world = World(f"sqlite:///{folder / 'yard.sqlite'}", folder / "state", **urls)
    seed(world)
    yield world
    world.database.dispose()


@pytest.fixture(params=["kept", "removed"])
def browser(base_world: World, request: pytest.FixtureRequest) -> TestClient:
    """A browser behind a proxy that keeps the base path, or removes it."""
    app: ASGIApp = base_world.app if request.param == "kept" else Removing(base_world.app)
    return SharedLoopClient(app, base_url=ORIGIN)


def sign_in(browser: TestClient, world: World) -> None:
    form, headers = {"token": world.token, "next": "/cluster"}, {"Origin": ORIGIN}
    answer = browser.post(f"{BASE}/sign-in", data=form, headers=headers)
    assert (answer.status_code, answer.url.path) == (200, f"{BASE}/cluster")


def kind_of(link: str) -> str:
    """Return an address without ids and queries, for pages of one kind are alike."""
    path = link.removeprefix(BASE).partition("?")[0].partition("#")[0]
    return re.sub(r"/(job|sweep|file)_\w+|/decisions/.*", "/ID", path)


@pytest.mark.cpu_seconds(12)
def test_all_pages_lead_to_addresses_below_the_base_path(base_world: World, browser: TestClient) -> None:
    sign_in(browser, base_world)
    waiting, visited = [f"{BASE}/jobs", f"{BASE}/docs", f"{BASE}/admin/webhooks", f"{BASE}/missing"], {""}
    while waiting:
        address = waiting.pop()
        answer = browser.get(address, headers={"Accept": "text/html"})
        assert answer.url.path.startswith(f"{BASE}/"), address
        assert answer.status_code == (404 if address.endswith("/missing") else 200), address
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        addresses = Addresses(answer.text)
        wrong = [one for one in (*addresses.links, *addresses.others) if not one.startswith(f"{BASE}/")]
        assert not wrong, f"{address} leads to {wrong}"
        assert f'data-base="{BASE}"' in answer.text
        for link in addresses.links:
            if kind_of(link) not in visited and not link.startswith(f"{BASE}/v1/"):
                visited.add(kind_of(link))
                waiting.append(link)
    pages = ("/jobs", "/jobs/ID", "/compare", "/models", "/submit", "/files", "/cluster", "/help", "/docs", "/admin")
    assert visited >= {*pages, "/admin/audit", "/help/api", "/openapi.json"}


def test_redirects_and_cookie_stay_below_the_base_path(base_world: World, browser: TestClient) -> None:
    for path in ("", "/", "/jobs?status=failed", "/jobs/x", "/jobs/x/wandb/a%2Fb/c"):
        answer = browser.get(f"{BASE}{path}", headers={"Accept": "text/html"})
        target = path or "/jobs"
        assert (answer.status_code, answer.url.path) == (200, f"{BASE}/sign-in"), path
        if path not in ("", "/"):
            expected = "/jobs/x" if "wandb" in path else target
            assert answer.url.params["next"] == expected
    form = {"token": base_world.token}
    answer = browser.post(f"{BASE}/sign-in", data=form, headers={"Origin": ORIGIN}, follow_redirects=False)
    parts = answer.headers["set-cookie"].split("; ")
    assert parts[0].startswith("__Secure-trainyard=")
    assert {f"Path={BASE}", "Secure", "SameSite=Strict"} <= set(parts)
    assert answer.headers["location"] == "./jobs"


@pytest.mark.parametrize("host", ["portal.example", DIRECT])
def test_sign_in_works_behind_proxies_that_do_not_pass_the_host_on(base_world: World, host: str) -> None:
    browser = SharedLoopClient(base_world.app, base_url=f"http://{host}")
    for origin, status in ((ORIGIN, 303), (ORIGIN.replace("https", "http"), 403), ("https://other.example", 403)):
        headers = {"Origin": origin}
        form = {"token": base_world.token}
        answer = browser.post(f"{BASE}/sign-in", data=form, headers=headers, follow_redirects=False)
        assert answer.status_code == status, origin


def test_wrong_path_of_a_clients_url_is_named(base_world: World) -> None:
    for path in ("/other", f"{BASE}/jobs"):
        answer = base_world.client.get(f"{path}/v1/jobs")
        message = f"unknown route; the URL of this service is {ORIGIN}{BASE}, without {path.removeprefix(BASE)}"
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, message)
    for path in ("", BASE):
        assert base_world.client.get(f"{path}/v1/jobs").status_code == 200


def test_workers_have_a_url_of_their_own(base_world: World) -> None:
    job = base_world.client.get("/v1/jobs?status=running").json()["data"][0]
    document = base_world.launch_document(job["id"])
    assert (document.service_url, document.public_url) == (f"http://{DIRECT}", f"{ORIGIN}{BASE}")


def test_openapi_document_names_the_base_path(base_world: World) -> None:
    app = create_app(base_world.app_state, PLUGINS)
    assert app.openapi()["servers"] == [{"url": BASE}]


@pytest.mark.parametrize("path", ["/jobs", "/v1/x", "/help"])
def test_base_path_of_a_route_is_refused(base_world: World, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    settings = base_world.settings.model_copy(update={"public_url": ORIGIN + path})
    monkeypatch.setattr(base_world.app_state, "settings", settings)
    with pytest.raises(InvalidRequestError, match=f"TRAINYARD_PUBLIC_URL: the path {path} begins as"):
        create_app(base_world.app_state, PLUGINS)


SINK = re.compile(
    r"\.(?:href|src|action) = (?!urlOf\(|fixAddress\(|pageOf\(|URL\.createObjectURL\()"
    r"|location\.(?:assign|replace)\((?!urlOf\(|address\)|PAGES\[)"
    r"|(?:replace|push)State\(null, \"\", (?!urlOf\(|this\.address\(|`\$\{location\.pathname\}|`#)"
    r"|\bhref: (?!urlOf\(|fixAddress\(|this\.link\(|target \?\? address)|\bawait fetch\((?!urlOf\()"
)
"""What leads to an address in a script, other than with the base path."""


def test_scripts_add_the_base_path() -> None:
    for script in STATIC.glob("*.js"):
        text = re.sub(r"(?<=[:(=,])\n *", " ", script.read_text()).replace("( ", "(")  # an address in a line of its own
        for line in text.splitlines():
            assert not SINK.search(line), f"{script.name}: {line.strip()[:200]}"
