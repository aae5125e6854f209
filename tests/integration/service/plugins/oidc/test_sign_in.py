"""The way to the provider and back: who is signed in where, and which attempts of others fail."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import sqlalchemy as sa

from service.api.rate_limits import Rate, RateLimiter
from service.db.models import OidcRequest, WebSession
from service.plugins.oidc import sign_in as sign_in_module
from tests.support.oidc_portal import ORIGIN, PAGE, SERVICE, Portal, problem_of, sign_out, user_of
from tests.support.oidc_provider import CLIENT_ID, provider_settings
from tests.support.oidc_signer import Signer
from tests.support.shared_parts import SharedLoopClient
from tests.support.world import FakeClock, World

pytestmark = pytest.mark.databases("sqlite")


def query_of(location: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}


@pytest.mark.databases("sqlite", "postgres")
def test_user_signs_in_with_the_role_of_a_group(portal: Portal) -> None:
    browser = portal.browser()
    answer = portal.sign_in(browser, "/jobs?status=failed")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?status=failed")
    assert user_of(browser) == ("ada", "user")


def test_sign_in_page_links_to_the_provider(portal: Portal, world: World) -> None:
    page = portal.browser().get("/sign-in?next=/cluster").text
    assert 'href="/sign-in/oidc?next=/cluster">Sign in with Example</a>' in page
    assert "/sign-in/oidc" not in world.client.get("/sign-in").text


def test_request_has_pkce_state_and_nonce(portal: Portal) -> None:
    first, second = (query_of(portal.start(portal.browser())) for _ in range(2))
    assert {name: first[name] for name in ("response_type", "client_id", "scope", "code_challenge_method")} == {
        "response_type": "code",
        "client_id": CLIENT_ID,
        "scope": "openid profile email groups",
        "code_challenge_method": "S256",
    }
    assert first["redirect_uri"] == f"{SERVICE}/sign-in/oidc/callback"
    for name in ("state", "nonce", "code_challenge"):
        assert len(first[name]) >= 43
        assert first[name] != second[name]


def test_verifier_of_the_exchange_belongs_to_the_challenge(portal: Portal, signer: Signer) -> None:
    from authlib.oauth2.rfc7636 import create_s256_code_challenge

    location = portal.start(browser := portal.browser())
    portal.finish(browser, signer.authorize(location))
    (form,) = signer.exchanges
    assert create_s256_code_challenge(form["code_verifier"]) == query_of(location)["code_challenge"]


def test_cookie_of_a_started_sign_in_is_short_lived_and_lax(portal: Portal) -> None:
    answer = portal.browser().get("/sign-in/oidc", follow_redirects=False)
    name, _, attributes = answer.headers["set-cookie"].partition("=")
    assert name == "trainyard-sign-in"
    assert set(attributes.split("; ")[1:]) == {"Path=/", "Max-Age=600", "HttpOnly", "SameSite=Lax"}


def test_cookies_are_secure_by_https(database_url: str, tmp_path: Path, signer: Signer, clock: FakeClock) -> None:
    public = "https://portal.example/yard"
    settings = provider_settings(signer.url, public)
    world = World(database_url, tmp_path / "state", clock, **settings)
    browser = SharedLoopClient(world.app, base_url="https://portal.example")
    answer = browser.get("/yard/sign-in/oidc?next=/cluster", follow_redirects=False)
    assert query_of(answer.headers["location"])["redirect_uri"] == f"{public}/sign-in/oidc/callback"
    assert answer.headers["set-cookie"].startswith("__Host-trainyard-sign-in=")
    assert {"Secure", "Path=/"} <= set(answer.headers["set-cookie"].split("; "))
    back = signer.authorize(answer.headers["location"])
    finished = browser.get("/yard/sign-in/oidc/callback", params=back, follow_redirects=False)
    assert finished.headers["location"] == "../../cluster"
    assert finished.headers["set-cookie"].startswith("__Secure-trainyard=")
    assert {"Secure", "Path=/yard", "SameSite=Strict"} <= set(finished.headers["set-cookie"].split("; "))
    world.database.dispose()


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "/sign-in/oidc",
        "/v1/jobs",
        "/%0d%0aX: y",
        "/x\r\nY:z",
    ],
)
def test_browser_is_sent_only_to_a_page_of_the_service(portal: Portal, target: str) -> None:
    answer = portal.sign_in(portal.browser(), target)
    assert answer.headers["location"] in ("/jobs", "/%0d%0aX:%20y")
    assert "x" not in answer.headers
    assert "y" not in answer.headers


def test_state_of_another_browser_signs_nobody_in(portal: Portal, signer: Signer) -> None:
    attacker, victim = portal.browser(), portal.browser()
    answer = signer.authorize(portal.start(attacker))
    portal.start(victim)
    refused = portal.finish(victim, answer)
    assert refused.status_code == 400
    assert "started in another browser" in problem_of(refused)
    assert user_of(victim) is None
    assert signer.exchanges == []


def test_browser_without_the_cookie_is_signed_in_by_no_answer(portal: Portal, signer: Signer) -> None:
    answer = signer.authorize(portal.start(portal.browser()))
    assert portal.finish(portal.browser(), answer).status_code == 400
    assert portal.finish(portal.browser(), {"code": "x"}).status_code == 400


def test_answer_works_once(portal: Portal, signer: Signer) -> None:
    browser = portal.browser()
    answer = signer.authorize(portal.start(browser))
    assert portal.finish(browser, answer).status_code == 303
    replayed = portal.finish(browser, answer)
    assert (replayed.status_code, len(signer.exchanges)) == (400, 1)
    assert "was used before" in problem_of(replayed)


def test_replayed_code_is_reported(portal: Portal, signer: Signer) -> None:
    browser = portal.browser()
    first = signer.authorize(portal.start(browser))
    portal.finish(browser, first)
    second = signer.authorize(portal.start(browser))
    answer = portal.finish(browser, {**second, "code": first["code"]})
    assert answer.status_code == 400
    assert "took too long, or was used before: sign in again" in problem_of(answer)


def test_code_of_another_sign_in_has_the_wrong_nonce(portal: Portal, signer: Signer) -> None:
    attacker, victim = portal.browser(), portal.browser()
    stolen = signer.authorize(portal.start(attacker))["code"]
    answer = portal.finish(victim, {**signer.authorize(portal.start(victim)), "code": stolen})
    assert answer.status_code == 502
    assert "`nonce`" in problem_of(answer)
    assert user_of(victim) is None


def test_started_sign_in_expires(portal: Portal, signer: Signer, clock: FakeClock) -> None:
    browser = portal.browser()
    answer = signer.authorize(portal.start(browser))
    clock.advance(600)
    assert "more than ten minutes" in problem_of(portal.finish(browser, answer))


def test_two_tabs_of_a_browser_both_sign_in(portal: Portal, signer: Signer) -> None:
    browser = portal.browser()
    answers = [signer.authorize(portal.start(browser, target)) for target in ("/jobs", "/cluster")]
    locations = [portal.finish(browser, answer).headers["location"] for answer in answers]
    assert locations == ["/jobs", "/cluster"]
    assert user_of(browser) == ("ada", "user")


def test_sign_in_replaces_the_session_of_the_browser(portal: Portal) -> None:
    browser = portal.signed_in()
    first = browser.cookies["trainyard"]
    assert portal.sign_in(browser).status_code == 303
    assert browser.cookies["trainyard"] != first
    with portal.world.database.read() as session:
        assert len(session.scalars(sa.select(WebSession)).all()) == 1


@pytest.mark.parametrize("name", ["state", "code"])
def test_repeated_parameter_is_refused(portal: Portal, signer: Signer, name: str) -> None:
    browser = portal.browser()
    answer = signer.authorize(portal.start(browser))
    sent = [*answer.items(), (name, "other")]
    refused = browser.get("/sign-in/oidc/callback", params=sent, headers=PAGE)
    assert refused.status_code == 400
    assert signer.exchanges == []


def test_oversized_cookies_and_parameters_are_refused(portal: Portal, signer: Signer) -> None:
    browser = portal.browser()
    answer = signer.authorize(portal.start(browser))
    long = {"state": "s" * 101, "code": "x"}, {**answer, "code": "c" * 8193}
    assert [portal.finish(browser, one).status_code for one in long] == [400, 400]
    answer = signer.authorize(portal.start(browser))
    browser.cookies.set("other", "x" * 4050)
    assert portal.finish(browser, answer).status_code == 431


@pytest.mark.parametrize("issuer", ["https://other.example", "http://127.0.0.1"])
def test_answer_of_another_issuer_is_refused(portal: Portal, signer: Signer, issuer: str) -> None:
    browser = portal.browser()
    answer = portal.finish(browser, {**signer.authorize(portal.start(browser)), "iss": issuer})
    assert "comes from another provider" in problem_of(answer)
    assert signer.exchanges == []


def test_provider_that_names_itself_must_do_so(portal: Portal, signer: Signer) -> None:
    signer.metadata["authorization_response_iss_parameter_supported"] = True
    browser = portal.browser()
    assert portal.finish(browser, signer.authorize(portal.start(browser))).status_code == 400
    answer = portal.finish(browser, {**signer.authorize(portal.start(browser)), "iss": signer.url})
    assert answer.status_code == 303


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("access_denied", "The sign-in was cancelled"),
        ("temporarily_unavailable", "The provider is overloaded"),
        ("<script>alert(1)</script>", "The provider has refused the sign-in: sign in again"),
        ("", "The provider has refused the sign-in"),
    ],
)
def test_refusal_of_the_provider_is_explained(portal: Portal, signer: Signer, code: str, message: str) -> None:
    browser = portal.browser()
    state = signer.authorize(portal.start(browser))["state"]
    text = "<b>from the provider</b>"
    answer = portal.finish(browser, {"state": state, "error": code, "error_description": text})
    assert answer.status_code == 400
    assert problem_of(answer).startswith(message)
    assert "<script>alert" not in answer.text
    assert "from the provider" not in answer.text


def test_service_without_a_provider_has_no_such_sign_in(world: World) -> None:
    for path in ("/sign-in/oidc", "/sign-in/oidc/callback"):
        answer = world.client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "sign_in_disabled")


def test_sign_ins_of_an_address_are_limited(portal: Portal) -> None:
    portal.world.app_state.sign_in_rate_limiter = RateLimiter(Rate(per_second=1, burst=1))
    browser = portal.browser()
    portal.start(browser)
    answer = browser.get("/sign-in/oidc", headers=PAGE, follow_redirects=False)
    assert answer.status_code == 429
    assert problem_of(answer) == "Rate limit exceeded; retry after 1 s."


def test_started_sign_ins_are_limited_in_number(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in_module, "MAX_REQUESTS", 1)
    portal.start(portal.browser())
    answer = portal.browser().get("/sign-in/oidc", headers=PAGE, follow_redirects=False)
    assert answer.status_code == 429
    assert "Too many sign-ins are in progress: sign in again later." in problem_of(answer)
    portal.clock.advance(601)
    portal.start(portal.browser())


def test_secrets_of_a_started_sign_in_are_hashed(portal: Portal) -> None:
    browser = portal.browser()
    state = query_of(portal.start(browser))["state"]
    with portal.world.database.read() as session:
        row = session.scalars(sa.select(OidcRequest)).one()
    assert state not in (row.hash, row.browser)
    assert browser.cookies["trainyard-sign-in"] not in (row.hash, row.browser)


def test_sign_in_ends_after_its_lifetime(portal: Portal, clock: FakeClock) -> None:
    browser = portal.signed_in()
    cookie = browser.cookies["trainyard"]
    clock.advance(12 * 3600)
    stale = portal.browser()
    stale.cookies.set("trainyard", cookie)
    assert user_of(stale) is None


def test_sign_out_ends_the_session_at_the_provider_too(portal: Portal, signer: Signer) -> None:
    browser = portal.signed_in()
    copied = browser.cookies["trainyard"]
    answer = sign_out(browser)
    assert answer.status_code == 200
    assert "Max-Age=0" in answer.headers["set-cookie"]
    address = answer.text.partition('content="0; url=')[2].partition('"')[0].replace("&amp;", "&")
    query = query_of(address)
    assert address.startswith(f"{signer.url}/end?")
    assert (query["client_id"], query["post_logout_redirect_uri"]) == (CLIENT_ID, f"{SERVICE}/sign-in")
    assert query["id_token_hint"].count(".") == 2
    browser.cookies.set("trainyard", copied)
    assert user_of(browser) is None


@pytest.mark.parametrize("fault", ["no endpoint", "down", "token"])
def test_sign_out_without_the_provider_ends_the_session(portal: Portal, signer: Signer, fault: str) -> None:
    if fault == "no endpoint":
        signer.metadata["end_session_endpoint"] = None
    browser = portal.signed_in()
    if fault == "down":
        portal.clock.advance(2 * 3600)
        signer.answers["/.well-known/openid-configuration"] = (500, b"", {})
    if fault == "token":
        form = {"token": portal.world.token}
        browser.post("/sign-in", data=form, headers=ORIGIN, follow_redirects=False)
    answer = sign_out(browser)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert user_of(browser) is None


def test_audit_names_subject_and_outcome(portal: Portal, signer: Signer) -> None:
    portal.signed_in()
    signer.claims = {"sub": "subject-2", "groups": []}
    portal.sign_in(portal.browser())
    refused, done = portal.audit()
    assert (done["actor"], done["outcome"], done["role"]) == ("ada", "done", "user")
    assert done["detail"] == {"issuer": signer.url, "subject": "subject-1", "name": "ada"}
    assert (refused["outcome"], refused["status"], refused["detail"]["reason"]) == ("refused", 403, "group_required")
    assert refused["detail"]["subject"] == "subject-2"
