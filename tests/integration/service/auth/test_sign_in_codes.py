"""Codes that sign a browser in: once, briefly, after a confirmation, and to pages of this service alone."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from service.auth.sessions import csrf_of
from service.db.models import SignInCode
from tests.support.world import World

pytestmark = pytest.mark.databases("both")

SAME_ORIGIN = {"Origin": "http://localhost"}


def new_code(world: World) -> str:
    made = world.client.post("/v1/sign-in/codes")
    assert made.status_code == 201, made.text
    return str(made.json()["code"])


def send(browser: TestClient, step: str, code: str, target: str = "/jobs", **headers: str) -> Any:
    form = {"code": code, "next": target}
    return browser.post(f"/sign-in/{step}", data=form, headers={**SAME_ORIGIN, **headers}, follow_redirects=False)


def test_code_signs_in_once_after_a_question(world: World) -> None:
    code, browser = new_code(world), world.new_client(None)
    shown = send(browser, "code", code, "/jobs/x")
    assert (shown.status_code, "set-cookie" in shown.headers) == (200, False)
    assert "Sign in as admin?" in shown.text
    assert send(browser, "code", code).status_code == 200, "a question does not use it up"
    done = send(browser, "with-code", code, "/jobs/x")
    assert (done.status_code, done.headers["location"]) == (303, "/jobs/x")
    assert browser.get("/v1/tokens/self").json()["name"] == "admin"
    again = send(world.new_client(None), "with-code", code)
    assert (again.status_code, "set-cookie" in again.headers) == (401, False)
    assert "was used before" in again.text


def test_one_of_several_uses_at_once_succeeds(world: World) -> None:
    code, browsers = new_code(world), [world.new_client(None) for _ in range(6)]
    with ThreadPoolExecutor(len(browsers)) as pool:
        answers = list(pool.map(lambda browser: send(browser, "with-code", code), browsers))
    assert sorted(answer.status_code for answer in answers) == [303] + [401] * 5
    assert sum("set-cookie" in answer.headers for answer in answers) == 1


def test_question_cannot_be_framed_or_stored_and_repeats_no_markup(world: World) -> None:
    code = new_code(world)
    shown = send(world.new_client(None), "code", code, '/jobs"><script>alert(1)</script>')
    assert "frame-ancestors 'none'" in shown.headers["content-security-policy"]
    assert shown.headers["cache-control"] == "no-store"
    assert "<script>alert" not in shown.text


def test_session_ends_with_the_token_that_made_the_code(world: World) -> None:
    ada, browser = world.new_user("user", "ada"), world.new_client(None)
    assert send(browser, "with-code", str(ada.post("/v1/sign-in/codes").json()["code"])).status_code == 303
    token_id = ada.get("/v1/tokens/self").json()["id"]
    assert world.client.delete(f"/v1/tokens/{token_id}").is_success
    assert browser.get("/v1/tokens/self").status_code == 401


@pytest.mark.parametrize("headers", [{"Origin": "null"}, {"Origin": ""}, {"Origin": "http://localhost.evil.example"}])
def test_request_without_the_origin_of_the_service_is_refused(world: World, headers: dict[str, str]) -> None:
    code = new_code(world)
    for step in ("code", "with-code"):
        assert send(world.new_client(None), step, code, **headers).status_code == 403


def test_code_expires_after_a_minute(world: World) -> None:
    code = new_code(world)
    world.clock.advance(timedelta(seconds=60).total_seconds())
    for step in ("code", "with-code"):
        assert send(world.new_client(None), step, code).status_code == 401


def test_code_ends_with_its_token(world: World) -> None:
    ada = world.new_user("user", "ada")
    code = str(ada.post("/v1/sign-in/codes").json()["code"])
    token_id = ada.get("/v1/tokens/self").json()["id"]
    assert world.client.delete(f"/v1/tokens/{token_id}").status_code in (200, 204)
    assert send(world.new_client(None), "with-code", code).status_code == 401


def test_only_the_hash_is_stored_and_old_codes_are_replaced(world: World) -> None:
    codes = []
    for _ in range(12):
        codes.append(new_code(world))
        world.clock.advance(1)
    with world.database.read() as session:
        rows = list(session.scalars(sa.select(SignInCode)))
    assert len(rows) == 10
    assert not {row.hash for row in rows} & set(codes)
    statuses = [send(world.new_client(None), "code", code).status_code for code in (codes[0], codes[-1])]
    assert statuses == [401, 200]


def test_session_of_another_user_is_named_and_ends(world: World) -> None:
    browser = world.new_client(None)
    ada = world.new_user("user", "ada")
    ada_code = str(ada.post("/v1/sign-in/codes").json()["code"])
    assert send(browser, "with-code", new_code(world)).status_code == 303
    secret = str(browser.cookies["trainyard"])
    assert "signed in as <b>admin</b>" in send(browser, "code", ada_code).text
    assert send(browser, "with-code", ada_code).status_code == 303
    assert browser.get("/v1/tokens/self").json()["name"] == "ada"
    old = world.new_client(None)
    old.cookies.set("trainyard", secret)
    assert old.get("/v1/tokens/self").status_code == 401


def test_browser_of_the_same_user_goes_on_without_a_question(world: World) -> None:
    browser = world.new_client(None)
    send(browser, "with-code", new_code(world))
    answer = send(browser, "code", new_code(world), "/jobs/x")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/x")


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "/v1/jobs", "", "javascript:x"]
)
def test_targets_are_pages_of_this_service(world: World, target: str) -> None:
    assert send(world.new_client(None), "with-code", new_code(world), target).headers["location"] == "/jobs"


@pytest.mark.parametrize("step", ["code", "with-code"])
def test_page_of_another_site_cannot_sign_anybody_in(world: World, step: str) -> None:
    code = new_code(world)
    answer = send(world.new_client(None), step, code, Origin="https://evil.example")
    assert answer.status_code == 403
    assert send(world.new_client(None), "with-code", code).status_code == 303, "and does not use the code up"


def test_visit_uses_nothing_up(world: World) -> None:
    code, browser = new_code(world), world.new_client(None)
    assert browser.get(f"/sign-in?code={code}").status_code == 200
    assert send(browser, "with-code", code).status_code == 303


@pytest.mark.parametrize("code", ["", "x", "x" * 5000, "é" * 20])
def test_other_texts_are_refused(world: World, code: str) -> None:
    for step in ("code", "with-code"):
        assert send(world.new_client(None), step, code).status_code == 401


def test_attempts_are_limited_like_those_with_tokens(database_url: str, tmp_path: Any) -> None:
    world = World(database_url, tmp_path / "state", rate_per_second=0.1, rate_burst=3)
    statuses = [send(world.new_client(None), "with-code", "x").status_code for _ in range(4)]
    world.database.dispose()
    assert statuses == [401, 401, 401, 429]


def test_creation_and_sign_in_are_audited_without_the_code(world: World) -> None:
    code = new_code(world)
    send(world.new_client(None), "code", code)
    send(world.new_client(None), "with-code", code)
    entries = world.client.get("/v1/audit?limit=10").json()["data"]
    assert [(entry["action"], entry["actor"]) for entry in entries[:2]] == [
        ("sign_in_with_code", "admin"),
        ("create_sign_in_code", "admin"),
    ]
    assert code not in str(entries)


def test_browser_session_cannot_make_codes(world: World) -> None:
    browser = world.new_client(None)
    send(browser, "with-code", new_code(world))
    headers = {**SAME_ORIGIN, "X-CSRF-Token": csrf_of(str(browser.cookies["trainyard"]))}
    answer = browser.post("/v1/sign-in/codes", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "token_required")
