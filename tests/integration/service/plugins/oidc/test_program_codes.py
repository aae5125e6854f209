"""Codes by which a program gets a token after a sign-in in a browser: `trainyard login --browser`."""

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.oidc_portal import ORIGIN, Portal, problem_of, sign_out, user_of
from tests.support.oidc_signer import Signer
from tests.support.world import FakeClock

pytestmark = pytest.mark.databases("sqlite")


def shown_code(portal: Portal) -> str:
    """Return the code that the browser of a new user shows."""
    browser = portal.browser()
    location = browser.get("/sign-in/oidc/code", follow_redirects=False).headers["location"]
    portal.signer.now = portal.clock()
    answer = portal.finish(browser, portal.signer.authorize(location))
    assert answer.status_code == 200, problem_of(answer)
    assert "trainyard" not in browser.cookies
    shown = re.search(r'<code id="code">([\w-]+)</code>', answer.text)
    assert shown is not None
    return shown[1]


def exchange(portal: Portal, code: str) -> Any:
    return portal.browser().post("/v1/sign-in/tokens", json={"code": code})


def program(portal: Portal) -> TestClient:
    answer = exchange(portal, shown_code(portal))
    assert answer.status_code == 201, answer.text
    return portal.world.new_client(answer.json()["token"])


@pytest.mark.databases("sqlite", "postgres")
def test_code_gives_a_program_the_token_of_the_sign_in(portal: Portal) -> None:
    answer = exchange(portal, shown_code(portal)).json()
    assert (answer["name"], answer["role"], answer["expires_at"]) == ("ada", "user", "2026-01-01T12:00:00.000Z")
    assert user_of(portal.world.new_client(answer["token"])) == ("ada", "user")


def test_code_works_once_and_for_five_minutes(portal: Portal, clock: FakeClock) -> None:
    code = shown_code(portal)
    assert exchange(portal, code).status_code == 201
    used = exchange(portal, code)
    assert (used.status_code, "was used before" in used.json()["error"]["message"]) == (404, True)
    late = shown_code(portal)
    clock.advance(300)
    assert exchange(portal, late).status_code == 404
    assert exchange(portal, "x" * 43).status_code == 404


def test_code_of_a_program_signs_no_browser_in(portal: Portal) -> None:
    code, browser = shown_code(portal), portal.browser()
    for path in ("/sign-in/code", "/sign-in/with-code"):
        assert browser.post(path, data={"code": code}, headers=ORIGIN).status_code == 401
    assert exchange(portal, code).status_code == 201


def test_code_of_a_browser_gives_no_token(portal: Portal) -> None:
    client = program(portal)
    code = client.post("/v1/sign-in/codes").json()["code"]
    assert exchange(portal, code).status_code == 404


def test_program_opens_pages_without_a_session_at_the_provider(portal: Portal) -> None:
    code = program(portal).post("/v1/sign-in/codes").json()["code"]
    browser = portal.browser()
    browser.post("/sign-in/with-code", data={"code": code}, headers=ORIGIN, follow_redirects=False)
    assert user_of(browser) == ("ada", "user")
    assert sign_out(browser).headers["location"] == "/sign-in"


def test_disabled_user_loses_the_program_and_its_code(portal: Portal) -> None:
    client, code = program(portal), shown_code(portal)
    portal.world.client.put("/v1/oidc-users/ada", json={"disabled": True})
    assert user_of(client) is None
    assert exchange(portal, code).status_code == 404


def test_user_without_a_group_gets_no_code(portal: Portal, signer: Signer) -> None:
    signer.claims = {"groups": []}
    browser = portal.browser()
    location = browser.get("/sign-in/oidc/code", follow_redirects=False).headers["location"]
    answer = portal.finish(browser, signer.authorize(location))
    assert (answer.status_code, 'id="code"' in answer.text) == (403, False)


def test_page_cannot_turn_its_session_into_a_code(portal: Portal) -> None:
    """The parameter `next` does not lead to the code."""
    answer = portal.sign_in(portal.browser(), "/sign-in/oidc/code")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")


def test_program_signs_out(portal: Portal) -> None:
    client = program(portal)
    assert client.delete("/v1/tokens/self").status_code == 204
    assert user_of(client) is None


def test_exchange_is_audited(portal: Portal) -> None:
    program(portal)
    exchange(portal, "x" * 43)
    refused, done = portal.world.client.get("/v1/audit?action=exchange_sign_in_code").json()["data"]
    assert (done["actor"], done["role"], done["outcome"]) == ("ada", "user", "done")
    assert (refused["actor"], refused["outcome"], refused["status"]) == ("anonymous", "refused", 404)
