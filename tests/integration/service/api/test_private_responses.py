"""Responses that must not be stored, and the API reference, which loads nothing from other hosts."""

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.core.errors import UnavailableError
from tests.support.shared_parts import SharedLoopClient
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")

PAGE = {"Accept": "text/html"}


def test_answers_of_the_api_are_not_stored(world: World) -> None:
    job_id = world.submit()
    for path in ("/v1/jobs", f"/v1/jobs/{job_id}", "/v1/tokens", f"/v1/jobs/{job_id}/export/files", "/v1/nope"):
        assert "no-store" in world.client.get(path).headers["cache-control"], path
    assert "no-store" in world.new_client(None).get("/v1/jobs").headers["cache-control"]


@pytest.mark.parametrize(
    ("url", "peer", "headers", "secure"),
    [
        ("http://localhost", "10.0.0.2", {"X-Forwarded-Proto": "https"}, True),
        ("https://localhost", "10.9.9.9", {}, True),
        ("http://localhost", "10.0.0.2", {"X-Forwarded-Proto": "http"}, False),
        ("http://localhost", "10.0.0.2", {}, False),
        ("http://localhost", "10.9.9.9", {"X-Forwarded-Proto": "https"}, False),
        ("http://localhost", "10.9.9.9", {"X-Forwarded-Proto": "https", "X-Forwarded-For": "10.0.0.2"}, False),
    ],
)
def test_answers_over_tls_keep_browsers_to_it(
    database_url: str, tmp_path: Path, url: str, peer: str, headers: dict[str, str], secure: bool
) -> None:
    world = World(database_url, tmp_path / "state", trusted_proxies=("10.0.0.0/30",))
    client = SharedLoopClient(world.app, base_url=url, client=(peer, 1), headers=headers)
    for path, status in (
        ("/v1/jobs", 401),
        ("/sign-in", 200),
        ("/livez", 200),
        ("/none", 404),
        ("/v1/x?" + "a&" * 300, 431),
    ):
        answer = client.get(path)
        assert answer.status_code == status, path
        expected = "max-age=15552000" if secure else None
        assert answer.headers.get("strict-transport-security") == expected, path
    world.database.dispose()


def test_api_docs_require_a_session(world: World) -> None:
    anonymous = world.new_client(None)
    answer = anonymous.get("/docs", headers=PAGE, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/docs")
    assert world.client.get("/redoc").status_code == 404


def test_pages_explain_that_they_accept_no_bearer_token(world: World) -> None:
    answer = world.client.get("/docs")
    assert answer.status_code == 401
    assert "sign in at /sign-in" in answer.json()["error"]["message"]
    assert "/openapi.json" in answer.json()["error"]["message"]


def test_help_is_for_browser_sessions_and_unknown_pages_are_not_found(world: World) -> None:
    answer = world.new_client(None).get("/help/programs", headers=PAGE, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/help/programs")
    browser = world.new_client(None)
    browser.post("/sign-in", data={"token": world.token}, headers={"Origin": "http://localhost"})
    for name in ("nothing", "..%2f..%2fREADME", "decisions"):
        assert browser.get(f"/help/{name}", headers=PAGE).status_code == 404, name
    assert browser.get("/help?q=" + "x" * 201, headers=PAGE).status_code == 422


def test_api_docs_load_only_own_files(world: World) -> None:
    browser = world.new_client(None)
    browser.post("/sign-in", data={"token": world.token}, headers={"Origin": "http://localhost"})
    answer = browser.get("/docs", headers=PAGE)
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    addresses = re.findall(r'(?:<script[^>]* src|<link[^>]* href)="([^"]+)"', answer.text)
    assert any(address.endswith("/api_docs.js") for address in addresses)
    for address in addresses:
        assert address.startswith("/static/")
        file = browser.get(address)
        assert (file.status_code, "immutable" in file.headers["cache-control"]) == (200, True), address


def test_database_errors_hide_the_parameters(world: World) -> None:
    with pytest.raises(UnavailableError) as caught, world.database.read() as session:
        session.execute(sa.text("SELECT * FROM no_such_table WHERE name = :name"), {"name": "my secret"})
    cause = str(caught.value.__cause__)
    assert "no_such_table" in cause
    assert "my secret" not in cause
