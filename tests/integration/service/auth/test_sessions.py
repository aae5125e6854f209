"""Browser sessions: cookie, expiry and protection against cross-site requests."""

from typing import Any
from unittest.mock import patch

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from service.auth.sessions import csrf_of
from service.db.models import WebSession
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")

SAME_ORIGIN = {"Origin": "http://localhost"}
PAGE = {"Accept": "text/html"}


def signed_in(world: World, token: str | None = None, next_page: str = "/jobs") -> TestClient:
    browser = world.new_client(None)
    form = {"token": token or world.token, "next": next_page}
    answer = browser.post("/sign-in", data=form, headers=SAME_ORIGIN, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return browser


def secret(browser: TestClient) -> str:
    return str(browser.cookies["trainyard"])


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_cookie_authenticates_like_its_token(world: World) -> None:
    browser = signed_in(world)
    assert browser.get("/v1/tokens/self").json()["name"] == "admin"


def test_session_secret_is_stored_as_a_hash(world: World) -> None:
    browser = signed_in(world)
    with world.database.read() as session:
        row = session.scalars(sa.select(WebSession)).one()
        columns = [str(getattr(row, column.key)) for column in sa.inspect(WebSession).columns]
    assert not any(secret(browser) in value for value in columns)


def test_further_sign_in_of_a_token_ends_its_oldest_session(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.auth.sessions.MAX_SESSIONS", 2)
    browsers = []
    for _ in range(3):
        browsers.append(signed_in(world))
        world.clock.advance(1)
    assert [browser.get("/v1/tokens/self").status_code for browser in browsers] == [401, 200, 200]


@pytest.mark.parametrize("token", ["", "nonsense", "ty_000000000000_" + "x" * 43, "ty_" + "é" * 20])
def test_invalid_token_creates_no_session(world: World, token: str) -> None:
    browser = world.new_client(None)
    answer = browser.post("/sign-in", data={"token": token}, headers=SAME_ORIGIN, follow_redirects=False)
    assert answer.status_code == 401
    assert "Invalid or expired token" in answer.text
    assert "set-cookie" not in answer.headers


def test_attempt_token_creates_no_session(world: World) -> None:
    job_id = world.submit()
    world.tick()
    token = world.folder(job_id).token.read_text().strip()
    answer = world.new_client(None).post("/sign-in", data={"token": token}, headers=SAME_ORIGIN, follow_redirects=False)
    assert answer.status_code == 401


def test_change_by_cookie_requires_csrf_header_and_origin(world: World) -> None:
    browser, job_id = signed_in(world), world.submit()
    right = {"X-CSRF-Token": csrf_of(secret(browser))}
    path = f"/v1/jobs/{job_id}/cancel"
    assert code(browser.post(path, headers=SAME_ORIGIN)) == (403, "csrf_token")
    assert code(browser.post(path, headers={**SAME_ORIGIN, "X-CSRF-Token": "0" * 64})) == (403, "csrf_token")
    assert code(browser.post(path, headers=right)) == (403, "cross_site")
    assert code(browser.post(path, headers={**right, "Origin": "http://evil.example"})) == (403, "cross_site")
    assert world.job(job_id)["desired"] == "run"
    assert browser.post(path, headers={**SAME_ORIGIN, **right}).status_code == 202


def test_csrf_token_of_another_session_is_rejected(world: World) -> None:
    one, other = signed_in(world), signed_in(world)
    headers = {**SAME_ORIGIN, "X-CSRF-Token": csrf_of(secret(other))}
    assert code(one.post("/v1/jobs", json=SPEC, headers=headers)) == (403, "csrf_token")


def test_bearer_token_overrides_cookie_and_needs_no_csrf_header(world: World) -> None:
    browser = signed_in(world)
    bearer = {**SAME_ORIGIN, "Authorization": f"Bearer {world.token}"}
    assert browser.post("/v1/jobs", json=SPEC, headers=bearer).status_code == 201
    assert browser.get("/v1/jobs", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_sign_out_invalidates_copies_of_the_cookie(world: World) -> None:
    browser = signed_in(world)
    copied = secret(browser)
    form = {"csrf": csrf_of(copied)}
    assert browser.post("/sign-out", data={"csrf": "no"}, headers=SAME_ORIGIN).status_code == 403
    answer = browser.post("/sign-out", data=form, headers=SAME_ORIGIN, follow_redirects=False)
    assert answer.status_code == 303
    assert "Max-Age=0" in answer.headers["set-cookie"]
    stale = world.new_client(None)
    stale.cookies.set("trainyard", copied)
    assert stale.get("/v1/jobs").status_code == 401


def test_session_expires(world: World) -> None:
    browser = signed_in(world)
    world.clock.advance(world.settings.session_hours * 3600 - 1)
    assert browser.get("/v1/jobs").status_code == 200
    world.clock.advance(1)
    stale = world.new_client(None)
    stale.cookies.set("trainyard", secret(browser) if browser.cookies else "")
    assert stale.get("/v1/jobs").status_code == 401


@pytest.mark.databases("sqlite", "postgres")
def test_session_ends_with_its_token(world: World) -> None:
    made = world.client.post("/v1/tokens", json={"name": "ada", "role": "viewer"}).json()
    browser = signed_in(world, made["token"])
    assert browser.get("/v1/jobs").status_code == 200
    world.client.delete(f"/v1/tokens/{made['id']}")
    assert browser.get("/v1/jobs").status_code == 401


@pytest.mark.databases("sqlite", "postgres")
def test_sign_in_removes_expired_sessions(world: World) -> None:
    signed_in(world)
    world.clock.advance(world.settings.session_hours * 3600)
    signed_in(world)
    with world.database.read() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(WebSession)) == 1


def test_cross_site_sign_in_is_rejected(world: World) -> None:
    browser = world.new_client(None)
    for headers in ({}, {"Origin": "http://evil.example"}, {"Origin": "http://["}):
        answer = browser.post("/sign-in", data={"token": world.token}, headers=headers, follow_redirects=False)
        assert code(answer) == (403, "cross_site")


@pytest.mark.parametrize(
    ("next_page", "location"),
    [
        ("/jobs?status=failed", "/jobs?status=failed"),
        ("//evil.example", "/jobs"),
        ("https://evil.example", "/jobs"),
        ("/\\evil.example", "/jobs"),
        ("/sign-in?next=/sign-in", "/jobs"),
        ("/jobs\r\nSet-Cookie: a=b", "/jobs"),
    ],
)
def test_redirect_after_sign_in_stays_on_the_site(world: World, next_page: str, location: str) -> None:
    browser = world.new_client(None)
    form = {"token": world.token, "next": next_page}
    answer = browser.post("/sign-in", data=form, headers=SAME_ORIGIN, follow_redirects=False)
    assert answer.headers["location"] == location


def test_cookie_is_secure_if_the_public_url_is_https(database_url: str, tmp_path: Any) -> None:
    world = World(database_url, tmp_path / "state", public_url="https://yard.example")
    browser = TestClient(world.app, base_url="https://yard.example")
    form, headers = {"token": world.token}, {"Origin": "https://yard.example"}
    answer = browser.post("/sign-in", data=form, headers=headers, follow_redirects=False)
    world.database.dispose()
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-trainyard=")
    assert {"Path=/", "HttpOnly", "SameSite=Strict", "Secure"} <= set(cookie.split("; "))


@pytest.mark.parametrize(
    ("origin", "status"),
    [("https://yard.example", 303), ("http://yard.example", 403), ("http://127.0.0.1:8000", 303)],
)
def test_origin_has_the_scheme_of_the_public_url(database_url: str, tmp_path: Any, origin: str, status: int) -> None:
    """Also if a proxy ends TLS, so that the service gets all requests over http. A tunnel to the service has http."""
    world = World(database_url, tmp_path / "state", public_url="https://yard.example")
    browser = TestClient(world.app, base_url=origin.replace("https", "http"))
    form = {"token": world.token}
    answer = browser.post("/sign-in", data=form, headers={"Origin": origin}, follow_redirects=False)
    world.database.dispose()
    assert answer.status_code == status


def test_sign_ins_and_failures_are_audited(world: World) -> None:
    world.new_client(None).post("/sign-in", data={"token": "no"}, headers=SAME_ORIGIN)
    signed_in(world)
    entries = world.client.get("/v1/audit").json()["data"]
    assert {(entry["action"], entry["outcome"]) for entry in entries} >= {
        ("sign_in", "done"),
        ("authenticate", "refused"),
    }


def test_sign_in_attempts_are_rate_limited_by_address(database_url: str, tmp_path: Any) -> None:
    world = World(database_url, tmp_path / "state", rate_per_second=0.1, rate_burst=3)
    browser = world.new_client(None)
    answers = [browser.post("/sign-in", data={"token": "no"}, headers=SAME_ORIGIN).status_code for _ in range(4)]
    world.database.dispose()
    assert answers == [401, 401, 401, 429]


def test_pages_redirect_to_sign_in_and_render_errors(world: World) -> None:
    anonymous = world.new_client(None)
    answer = anonymous.get("/jobs?search=a%26b", headers=PAGE, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/jobs%3Fsearch%3Da%2526b")
    lost = signed_in(world).get("/no-such-page", headers=PAGE)
    assert lost.status_code == 404
    assert "Page not found" in lost.text
    assert code(world.client.get("/no-such-page")) == (404, "route_not_found")
    assert code(world.client.get("/v1/no-such-route", headers=PAGE)) == (404, "route_not_found")


def test_a_request_that_no_route_sees_is_refused_with_a_page_in_a_browser(world: World) -> None:
    browser = signed_in(world)
    for path, headers, status, text in (
        ("/jobs/a%00b", {}, 422, "the URL contains a NUL character"),
        ("/jobs?search=%00", {}, 422, "the URL contains a NUL character"),
        ("/jobs", {"Host": "other.example"}, 400, "unknown host"),
    ):
        page = browser.get(path, headers={**PAGE, **headers})
        assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8"), path
        assert text in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert browser.get(path, headers=headers).headers["content-type"] == "application/json"
        assert browser.get(f"/v1{path}", headers={**PAGE, **headers}).headers["content-type"] == "application/json"


def test_a_rate_limit_is_a_page_in_a_browser(database_url: str, tmp_path: Any) -> None:
    world = World(database_url, tmp_path / "state", rate_per_second=0.1, rate_burst=3)
    browser = world.new_client(None)
    answers = [browser.get("/jobs", headers=PAGE, follow_redirects=False) for _ in range(4)]
    world.database.dispose()
    assert [answer.status_code for answer in answers] == [303, 303, 303, 429]
    assert answers[-1].headers["content-type"] == "text/html; charset=utf-8"
    assert int(answers[-1].headers["retry-after"]) > 0


def test_an_unexpected_error_is_a_page_in_a_browser(world: World) -> None:
    with patch("service.web.rendering.Pages.redirect_to_sign_in", side_effect=RuntimeError("unforeseen")):
        answer = world.new_client(None).get("/jobs", headers=PAGE, follow_redirects=False)
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "see the log of the service" in answer.text
    assert "unforeseen" not in answer.text


def test_pages_have_restrictive_security_headers(world: World) -> None:
    browser, job_id = signed_in(world), world.submit()
    for path in ("/sign-in", "/jobs", f"/jobs/{job_id}", "/no-such-page"):
        answer = browser.get(path, headers=PAGE)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "script-src 'self';" in answer.headers["content-security-policy"]
        assert (answer.headers["x-frame-options"], answer.headers["cache-control"]) == ("DENY", "no-store")


def test_link_of_wandb_leads_to_the_page_of_the_job(world: World) -> None:
    browser, job_id = signed_in(world), world.submit()
    for segment, target in ((job_id, job_id), ("a%5Cb", "a%5Cb"), ("%C3%BC", "%C3%BC")):
        path = f"/jobs/{segment}/wandb/me/my%20project/runs/1"
        answer = browser.get(path, headers=PAGE, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{target}")
    assert browser.get(f"/jobs/{job_id}/wandb/me/p/runs/1", headers=PAGE).status_code == 200


def test_job_names_are_escaped_in_pages(world: World) -> None:
    name = "</script><img src=x onerror=alert(1)>"
    browser, job_id = signed_in(world), world.submit(name=name)
    for path in ("/jobs", f"/jobs/{job_id}"):
        assert "<img" not in browser.get(path).text


def test_static_files_are_immutable_under_their_digest(world: World) -> None:
    browser = world.new_client(None)
    page = browser.get("/sign-in").text
    address = page.split('href="')[2].split('"')[0]
    answer = browser.get(address)
    assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
    old = browser.get("/static/yesterday/base.css")
    assert (old.status_code, old.headers["cache-control"]) == (200, "no-cache")
    for nothing in ("/static/x/nothing.js", "/static/x/..%2f__init__.py", "/static/uplot-0/uPlot.iife.min.js"):
        assert browser.get(nothing).status_code == 404


@pytest.mark.databases("sqlite", "postgres")
def test_search_matches_substrings_without_wildcards(world: World) -> None:
    one, other = world.submit(name="Llama_a"), world.submit(name="llama-b")

    def search(text: str) -> list[str]:
        answer = world.client.get("/v1/jobs", params={"search": text})
        return sorted(job["id"] for job in answer.json()["data"])

    assert search("LLAMA") == sorted([one, other])
    assert search("a_a") == [one]
    assert search("%") == []
    assert search(other) == [other]


@pytest.mark.databases("sqlite", "postgres")
@pytest.mark.parametrize("where", ["", "gpus > 0"])
def test_search_matches_a_part_of_the_owner(world: World, where: str) -> None:
    world.submit()
    answer = world.new_user("user", "benjamin").post("/v1/jobs", json=SPEC)
    matches = world.client.get("/v1/jobs", params={"search": "BENJ", "where": where}).json()["data"]
    assert [job["id"] for job in matches] == [answer.json()["id"]]
