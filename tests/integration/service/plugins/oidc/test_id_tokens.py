"""Statements of the provider that must not be trusted, and providers that do not work."""

import base64
import json
import logging
import socket
from typing import Any

import pytest
from joserfc.jwk import ECKey, RSAKey

from service.plugins.oidc import provider as provider_module
from service.plugins.oidc.provider import MAX_BYTES
from tests.support.oidc_portal import PAGE, Portal, problem_of, user_of
from tests.support.oidc_provider import CLIENT_ID, CLIENT_SECRET
from tests.support.oidc_signer import Signer
from tests.support.world import FakeClock

pytestmark = pytest.mark.databases("sqlite")

WELL_KNOWN = "/.well-known/openid-configuration"


def refused(portal: Portal) -> str:
    """Return the problem of a sign-in that fails."""
    browser = portal.browser()
    answer = portal.sign_in(browser)
    assert answer.status_code in (400, 502), answer.status_code
    assert user_of(browser) is None
    assert "trainyard=" not in answer.headers.get("set-cookie", "")
    problem = problem_of(answer)
    assert problem.endswith(".")
    return problem


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "another client"}, "`aud`"),
        ({"aud": ["another client"]}, "`aud`"),
        ({"aud": None}, "`aud`"),
        ({"aud": [CLIENT_ID, "another client"]}, "`azp`"),
        ({"aud": [CLIENT_ID, "another client"], "azp": "another client"}, "`azp`"),
        ({"azp": "another client"}, "`azp`"),
        ({"iss": "https://other.example"}, "`iss`"),
        ({"iss": None}, "`iss`"),
        ({"nonce": "of another sign-in"}, "`nonce`"),
        ({"nonce": None}, "`nonce`"),
        ({"exp": None}, "`exp`"),
        ({"exp": "tomorrow"}, "`exp`"),
        ({"iat": None}, "`iat`"),
        ({"sub": None}, "`sub`"),
        ({"sub": ""}, "`sub`"),
        ({"sub": 7}, "`sub`"),
        ({"sub": "s" * 256}, "`sub`"),
        ({"sub": "line\nline"}, "`sub`"),
        ({"at_hash": "of another token"}, "`at_hash`"),
    ],
)
def test_wrong_claim_is_refused(portal: Portal, signer: Signer, claims: dict[str, Any], reason: str) -> None:
    signer.claims = claims
    assert f"because its claim {reason} is not valid" in refused(portal)


def test_audience_of_several_with_this_service_as_party_is_accepted(portal: Portal, signer: Signer) -> None:
    signer.claims = {"aud": [CLIENT_ID, "another"], "azp": CLIENT_ID}
    assert portal.sign_in(portal.browser()).status_code == 303


@pytest.mark.parametrize(("seconds", "status"), [(-59, 303), (-60, 502)])
def test_clock_of_the_provider_may_be_a_minute_late(
    portal: Portal, signer: Signer, clock: FakeClock, seconds: int, status: int
) -> None:
    signer.claims = {"exp": int(clock().timestamp()) + seconds}
    answer = portal.sign_in(portal.browser())
    assert answer.status_code == status
    assert "has expired" in problem_of(answer) or status == 303


@pytest.mark.parametrize(("claim", "seconds", "status"), [("iat", 60, 303), ("iat", 61, 502), ("nbf", 61, 502)])
def test_clock_of_the_provider_may_be_a_minute_early(
    portal: Portal, signer: Signer, clock: FakeClock, claim: str, seconds: int, status: int
) -> None:
    signer.claims = {claim: int(clock().timestamp()) + seconds}
    assert portal.sign_in(portal.browser()).status_code == status


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_algorithm_without_a_private_key_is_refused(portal: Portal, signer: Signer, algorithm: str) -> None:
    """The provider even names both among its algorithms; HS256 is signed with the public key as the secret."""
    signer.header = {"alg": algorithm, "kid": "one"}
    assert "its signature is not valid" in refused(portal)


def test_algorithm_that_the_provider_does_not_name_is_refused(portal: Portal, signer: Signer) -> None:
    signer.header = {"alg": "RS512", "kid": "one"}
    assert "its signature is not valid" in refused(portal)


def test_key_of_another_type_is_accepted_for_its_algorithm(portal: Portal, signer: Signer) -> None:
    signer.keys["curve"] = ECKey.generate_key("P-256", {"kid": "curve", "use": "sig"})
    signer.header = {"alg": "ES256", "kid": "curve"}
    assert portal.sign_in(portal.browser()).status_code == 303


def test_signature_of_another_key_is_refused(portal: Portal, signer: Signer) -> None:
    published = signer.keys["one"]
    browser = portal.browser()
    answer = signer.authorize(portal.start(browser))
    signer.keys["one"] = RSAKey.generate_key(2048, {"kid": "one"})
    signer.id_token = signer.sign(signer.nonces[answer["code"]])
    signer.keys["one"] = published
    assert "its signature is not valid" in problem_of(portal.finish(browser, answer))


def test_changed_claims_are_refused(portal: Portal, signer: Signer) -> None:
    browser = portal.browser()
    answer = signer.authorize(portal.start(browser))
    head, body, signature = signer.sign(signer.nonces[answer["code"]]).split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    changed = json.dumps({**claims, "groups": ["ml-admins"]}).encode()
    signer.id_token = ".".join((head, base64.urlsafe_b64encode(changed).rstrip(b"=").decode(), signature))
    assert "its signature is not valid" in problem_of(portal.finish(browser, answer))


def test_keys_are_read_again_once_for_an_unknown_key(portal: Portal, signer: Signer) -> None:
    portal.signed_in()
    signer.keys["two"] = RSAKey.generate_key(2048, {"kid": "two", "use": "sig"})
    signer.header["kid"] = "two"
    portal.signed_in()
    portal.signed_in()
    assert signer.requests.count("/keys") == 2
    signer.keys["three"] = RSAKey.generate_key(2048, {"kid": "three", "use": "sig"})
    signer.header["kid"], signer.unpublished = "three", {"three"}
    assert "a key that it does not publish" in refused(portal)
    assert signer.requests.count("/keys") == 3


def test_metadata_and_keys_are_read_once_an_hour(portal: Portal, signer: Signer, clock: FakeClock) -> None:
    for _ in range(3):
        portal.signed_in()
    assert (signer.requests.count(WELL_KNOWN), signer.requests.count("/keys")) == (1, 1)
    clock.advance(3600)
    portal.signed_in()
    assert (signer.requests.count(WELL_KNOWN), signer.requests.count("/keys")) == (2, 2)


@pytest.mark.parametrize("id_token", ["", "garbage", "a.b.c", "é.é.é", "a" * 70_000, "e30.e30.e30.e30.e30"])
def test_garbage_instead_of_an_id_token_is_refused(portal: Portal, signer: Signer, id_token: str) -> None:
    signer.id_token = id_token
    assert refused(portal)


@pytest.mark.parametrize(
    "document",
    [b"[]", b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "AAAA"}]}', b'{"keys": [{"kty": "RSA"}, 1]}', b"{}", b"x"],
)
def test_unusable_keys_are_reported(portal: Portal, signer: Signer, document: bytes) -> None:
    signer.answers["/keys"] = (200, document, {})
    assert "sign in again later" in refused(portal)


def failed_start(portal: Portal) -> str:
    answer = portal.browser().get("/sign-in/oidc?next=/cluster", headers=PAGE, follow_redirects=False)
    assert answer.status_code == 502
    assert 'name="next" value="/cluster"' in answer.text
    return problem_of(answer)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, b"", {}), "its metadata are missing: check TRAINYARD_OIDC_ISSUER"),
        ((500, b"<html>", {}), "its metadata are missing"),
        ((302, b"", {"Location": "http://127.0.0.1:9/"}), "its metadata are missing"),
        ((200, b"<html>", {}), "its answer is not JSON"),
        ((200, b"[]", {}), "its metadata are not an object"),
        ((200, b"[" * 100_000, {}), "its answer is not JSON"),
        ((200, b" " * (MAX_BYTES + 1), {}), "its answer is too long"),
        ((200, b"x", {"Content-Encoding": "gzip"}), "its answer is compressed"),
        ((200, b"\xff\xfe", {}), "its answer is not JSON"),
    ],
)
def test_unusable_metadata_are_reported(portal: Portal, signer: Signer, answer: Any, message: str) -> None:
    signer.answers[WELL_KNOWN] = answer
    assert f"The provider cannot be used, because {message}" in failed_start(portal)


def test_metadata_of_another_issuer_are_refused(portal: Portal, signer: Signer) -> None:
    signer.metadata["issuer"] = "https://<b>evil</b>.example"
    problem = failed_start(portal)
    assert problem.startswith("The provider states another issuer than TRAINYARD_OIDC_ISSUER")
    assert "evil" not in problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorization_endpoint", "javascript:alert(1)"),
        ("authorization_endpoint", "http://login.example.org/authorize"),
        ("authorization_endpoint", None),
        ("token_endpoint", "https://user:password@login.example.org/"),
        ("jwks_uri", "file:///etc/passwd"),
        ("jwks_uri", 7),
        ("end_session_endpoint", "https://login.example.org/\r\nX: y"),
        ("id_token_signing_alg_values_supported", ["HS256", "none"]),
        ("token_endpoint_auth_methods_supported", ["private_key_jwt"]),
    ],
)
def test_unsafe_metadata_are_refused(portal: Portal, signer: Signer, name: str, value: Any) -> None:
    signer.metadata[name] = value
    assert failed_start(portal).startswith("The provider cannot be used, because it")


def test_secret_is_sent_in_the_body_where_the_provider_wants_that(portal: Portal, signer: Signer) -> None:
    portal.signed_in()
    signer.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    portal.clock.advance(3600)
    portal.signed_in()
    header, body = signer.exchanges
    assert (header["authorization"][:6], "client_secret" in header) == ("Basic ", False)
    assert (body["authorization"], body["client_id"]) == ("", CLIENT_ID)
    assert body["client_secret"] == CLIENT_SECRET


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, b'{"error": "invalid_client"}', {}), "an administrator must check TRAINYARD_OIDC_CLIENT_ID"),
        ((500, b"", {}), "refused to finish the sign-in"),
        ((400, b'{"error": ["x"]}', {}), "refused to finish the sign-in"),
        ((200, b"{}", {}), "it does not state who has signed in"),
        ((200, b"null", {}), "it does not state who has signed in"),
        ((200, b"garbage", {}), "its answer is not JSON"),
    ],
)
def test_failed_exchange_is_explained(portal: Portal, signer: Signer, answer: Any, message: str) -> None:
    signer.answers["/token"] = answer
    assert message in refused(portal)


def test_provider_that_is_down_is_reported(portal: Portal, signer: Signer) -> None:
    signer.metadata["token_endpoint"] = "http://127.0.0.1:1/token"
    assert "cannot be reached: sign in again later, or with a token" in refused(portal)


def test_silent_provider_is_reported(portal: Portal, signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        signer.metadata["token_endpoint"] = f"http://127.0.0.1:{silent.getsockname()[1]}/token"
        location = portal.start(browser := portal.browser())
        monkeypatch.setattr(provider_module, "SECONDS", 0.05)
        answer = portal.finish(browser, signer.authorize(location))
    assert "it does not answer in time" in problem_of(answer)


def test_answer_that_drips_is_reported(portal: Portal, signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    location = portal.start(browser := portal.browser())
    signer.drips.add("/token")
    monkeypatch.setattr(provider_module, "SECONDS", 0.2)
    assert "it does not answer in time" in problem_of(portal.finish(browser, signer.authorize(location)))


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Any:
    """Return what was logged, but for the addresses that the client of the test logs itself."""
    caplog.set_level(logging.DEBUG)

    def read() -> str:
        messages = [one.getMessage() for one in caplog.records if one.name != "httpx2"]
        return "\n".join((*capsys.readouterr(), *messages))

    return read


def test_log_has_neither_code_nor_token(portal: Portal, signer: Signer, log: Any) -> None:
    browser = portal.browser()
    answer = signer.authorize(portal.start(browser))
    assert portal.finish(browser, answer).status_code == 303
    secrets = [answer["state"], signer.exchanges[0]["code_verifier"], browser.cookies["trainyard"], "access-secret"]
    replayed = signer.authorize(portal.start(browser))
    portal.finish(browser, {**replayed, "code": answer["code"]})
    signer.answers["/token"] = (200, b'{"id_token": "e30.secret-token.e30", "access_token": "access-secret"}', {})
    portal.finish(browser, signer.authorize(portal.start(browser)))
    text = log()
    assert "the provider refuses a code" in text
    assert not [one for one in (*secrets, replayed["state"], "secret-token", "code-0") if one in text]
