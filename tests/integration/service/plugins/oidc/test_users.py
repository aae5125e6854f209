"""Who a subject is here: names that stay, collide or are refused, roles, and disabled users."""

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from service.auth.repository import TokenRepository
from service.auth.sign_in import MungeSignIn
from service.core.errors import ConflictError
from service.db.models import OidcToken, OidcUser, Token, UnixUser
from tests.support.munge import FakeAccounts, FakeMunge
from tests.support.oidc_portal import Portal, problem_of, user_of
from tests.support.oidc_signer import Signer
from tests.support.wait import wait_until
from trainyard.contract.wire.sign_in import SignInRequest, sign_in_message

pytestmark = pytest.mark.databases("sqlite")


def refused(portal: Portal) -> str:
    browser = portal.browser()
    answer = portal.sign_in(browser)
    assert (answer.status_code, user_of(browser)) == (403, None)
    return problem_of(answer)


def test_user_with_a_new_name_claim_is_the_same_user(portal: Portal, signer: Signer) -> None:
    portal.signed_in()
    signer.claims = {"preferred_username": "ada.lovelace"}
    assert user_of(portal.signed_in()) == ("ada", "user")
    signer.claims = {"preferred_username": "not a name"}
    assert user_of(portal.signed_in()) == ("ada", "user")


@pytest.mark.databases("sqlite", "postgres")
@pytest.mark.parametrize("name", ["ada", "ADA"])
def test_second_subject_with_a_name_is_refused(portal: Portal, signer: Signer, name: str) -> None:
    portal.signed_in()
    signer.claims = {"sub": "subject-2", "preferred_username": name}
    assert refused(portal).startswith(f"A user `{name}` exists here, who may be another person")
    signer.claims = {}
    assert user_of(portal.signed_in()) == ("ada", "user")


def test_same_subject_of_another_issuer_is_another_user(portal: Portal, signer: Signer) -> None:
    with portal.world.database.write() as session:
        row = {"issuer": "https://former.example", "subject": "subject-1", "created_at": portal.clock()}
        session.add(OidcUser(**row, name="ada", name_key="ada"))
    assert "who may be another person" in refused(portal)


def test_subjects_are_compared_with_case(portal: Portal, signer: Signer) -> None:
    portal.signed_in()
    signer.claims = {"sub": "Subject-1", "preferred_username": "bob"}
    assert user_of(portal.signed_in()) == ("bob", "user")


@pytest.mark.databases("sqlite", "postgres")
@pytest.mark.parametrize("name", ["ada", "Ada"])
def test_name_of_a_user_with_a_token_is_refused(portal: Portal, name: str) -> None:
    portal.world.new_user("user", name)
    assert "who may be another person" in refused(portal)
    with portal.world.database.read() as session:
        assert session.scalars(sa.select(OidcUser)).all() == []


def test_name_of_a_user_with_a_unix_account_is_refused(portal: Portal) -> None:
    with portal.world.database.write() as session:
        session.add(UnixUser(name="ada", uid=4711, created_at=portal.clock()))
    assert "who may be another person" in refused(portal)


@pytest.mark.databases("postgres", only=True)
def test_name_that_another_sign_in_takes_meanwhile_is_refused(portal: Portal) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with ThreadPoolExecutor(1) as pool, portal.world.database.write() as session:
        TokenRepository(session).lock_name(portal.world.database, "ADA")
        session.add(UnixUser(name="ada", uid=4711, created_at=portal.clock()))
        session.flush()
        done = pool.submit(refused, portal)

        def is_waiting() -> bool:
            with portal.world.database.read() as reader:
                return bool(reader.scalar(sa.text(waiting)))

        wait_until(is_waiting, 20, "the sign-in to wait for the name")
        session.commit()
        assert "who may be another person" in done.result()


@pytest.mark.parametrize("name", ["admin", "SERVICE", "anonymous", "a b", "", "../x", "a" * 65, 7, None, "ada\n"])
def test_claim_that_is_no_name_is_refused(portal: Portal, signer: Signer, name: Any) -> None:
    signer.claims = {"preferred_username": name}
    assert refused(portal)


def test_hostile_name_is_shown_as_text(portal: Portal, signer: Signer) -> None:
    signer.claims = {"preferred_username": "<img src=x onerror=alert(1)>"}
    answer = portal.sign_in(portal.browser())
    assert "<img" not in answer.text
    assert "&lt;img src=x" in answer.text


def test_role_follows_the_groups_at_each_sign_in(portal: Portal, signer: Signer) -> None:
    first = portal.signed_in()
    signer.claims = {"groups": ["staff"]}
    second = portal.signed_in()
    assert (user_of(second), user_of(first)) == (("ada", "viewer"), None)
    signer.claims = {"groups": ["research", "ml-admins"]}
    third = portal.signed_in()
    assert (user_of(third), user_of(second)) == (("ada", "admin"), None)


def test_user_without_a_group_loses_earlier_sessions(portal: Portal, signer: Signer) -> None:
    browser = portal.signed_in()
    signer.claims = {"groups": ["others"]}
    assert refused(portal).startswith("You are in none of the groups that can use this service")
    assert user_of(browser) is None


def test_disabled_user_is_refused_and_loses_the_session(portal: Portal) -> None:
    browser = portal.signed_in()
    answer = portal.world.client.put("/v1/oidc-users/ada", json={"disabled": True})
    assert answer.status_code == 200, answer.text
    assert user_of(browser) is None
    assert refused(portal).startswith("An administrator has disabled your account here")
    portal.world.client.put("/v1/oidc-users/ada", json={"disabled": False})
    assert user_of(portal.signed_in()) == ("ada", "user")


def test_revoked_token_ends_the_session(portal: Portal) -> None:
    browser = portal.signed_in()
    token_id = browser.get("/v1/tokens/self").json()["id"]
    assert portal.world.client.delete(f"/v1/tokens/{token_id}").status_code == 204
    assert user_of(browser) is None
    assert user_of(portal.signed_in()) == ("ada", "user")


def test_administrator_links_an_existing_user(portal: Portal, signer: Signer) -> None:
    by_token = portal.world.new_user("user", "ada")
    answer = portal.world.client.put("/v1/oidc-users/ada", json={"subject": "subject-1"})
    assert (answer.json()["issuer"], answer.json()["subject"]) == (signer.url, "subject-1")
    assert user_of(portal.signed_in()) == ("ada", "user")
    assert user_of(by_token) == ("ada", "user")


def test_munge_takes_no_name_that_a_subject_was_linked_to(portal: Portal) -> None:
    portal.world.client.put("/v1/oidc-users/ada", json={"subject": "subject-1"})
    world, munge = portal.world, FakeMunge()
    settings = world.settings.model_copy(update={"munge_role": "user"})
    signing_in = MungeSignIn(world.database, settings, munge, FakeAccounts({"ada": 4711}))
    nonce, _ = signing_in.create_nonce("127.0.0.1", portal.clock())
    message = sign_in_message(settings.service_url, socket.gethostname(), nonce)
    request = SignInRequest(nonce=nonce, credential=munge.make(4711, message))
    with pytest.raises(ConflictError, match="a user `ada` exists"):
        signing_in.sign_in(request, "127.0.0.1", portal.clock())


def test_link_to_another_subject_ends_sign_ins_of_the_former(portal: Portal, signer: Signer) -> None:
    former = portal.signed_in()
    portal.world.client.put("/v1/oidc-users/ada", json={"subject": "subject-2"})
    assert user_of(former) is None
    assert "who may be another person" in refused(portal)
    signer.claims = {"sub": "subject-2"}
    assert user_of(portal.signed_in()) == ("ada", "user")


def test_link_of_a_subject_that_has_another_name_moves_it(portal: Portal) -> None:
    former = portal.signed_in()
    portal.world.client.put("/v1/oidc-users/countess", json={"subject": "subject-1"})
    assert user_of(former) is None
    assert user_of(portal.signed_in()) == ("countess", "user")


def test_users_are_listed_by_name(portal: Portal, signer: Signer) -> None:
    portal.signed_in()
    signer.claims = {"sub": "subject-2", "preferred_username": "Bob"}
    portal.signed_in()
    first = portal.world.client.get("/v1/oidc-users?limit=1").json()
    assert ([one["name"] for one in first["data"]], first["has_more"]) == (["ada"], True)
    second = portal.world.client.get(f"/v1/oidc-users?after={first['last_id']}").json()
    assert ([one["subject"] for one in second["data"]], second["has_more"]) == (["subject-2"], False)


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("admin", {"subject": "x"}, (422, "reserved_name")),
        ("nobody", {"disabled": True}, (404, "oidc_user_not_found")),
        ("ada", {"subject": ""}, (422, "invalid_value")),
        ("ada", {"subject": "x" * 256}, (422, "invalid_value")),
    ],
)
def test_invalid_link_is_refused(portal: Portal, name: str, body: Any, code: Any) -> None:
    answer = portal.world.client.put(f"/v1/oidc-users/{name}", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == code


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({}, ""),
        ({"email": "ada@EXAMPLE.org"}, ""),
        ({"email": "ada@other.example"}, "Your e-mail address is of none of the domains"),
        ({"email": "ada@example.org@other.example"}, "Your e-mail address is of none of the domains"),
        ({"email": "ada@sub.example.org"}, "Your e-mail address is of none of the domains"),
        ({"email": None}, "Your e-mail address is of none of the domains"),
        ({"email_verified": False}, "The provider does not state that it has verified your e-mail address"),
        ({"email_verified": "true"}, "The provider does not state that it has verified your e-mail address"),
    ],
)
def test_domain_of_the_verified_address_decides(
    portal: Portal, signer: Signer, claims: dict[str, Any], message: str
) -> None:
    parts = portal.world.app_state.plugin_parts
    policy = replace(parts["oidc"].policy, email_domains=frozenset({"example.org"}))
    parts["oidc"] = replace(parts["oidc"], policy=policy)
    signer.claims = {"email": "ada@example.org", "email_verified": True, **claims}
    answer = portal.sign_in(portal.browser())
    assert answer.status_code == (403 if message else 303)
    assert problem_of(answer).startswith(message)


def test_missing_claims_are_read_from_the_user_info(portal: Portal, signer: Signer) -> None:
    signer.claims = {"preferred_username": None, "groups": None}
    signer.user_info = {"sub": "subject-1", "preferred_username": "ada", "groups": ["ml-admins"], "iss": "ignored"}
    assert user_of(portal.signed_in()) == ("ada", "admin")


def test_user_info_of_another_subject_is_refused(portal: Portal, signer: Signer) -> None:
    signer.claims = {"groups": None}
    signer.user_info = {"sub": "subject-2", "groups": ["ml-admins"]}
    answer = portal.sign_in(portal.browser())
    assert (answer.status_code, problem_of(answer)[:44]) == (502, "The provider's statements about you differ: ")


def test_user_info_replaces_no_claim_of_the_id_token(portal: Portal, signer: Signer) -> None:
    signer.claims = {"preferred_username": None}
    signer.user_info = {"sub": "subject-1", "preferred_username": "ada", "groups": ["ml-admins"]}
    assert user_of(portal.signed_in()) == ("ada", "user")


def test_token_of_a_sign_in_does_not_run_code_by_itself(portal: Portal) -> None:
    portal.signed_in()
    with portal.world.database.read() as session:
        token = session.scalars(sa.select(Token).where(Token.name == "ada")).one()
    assert (token.may_run_code, token.created_by, token.role) == (False, "ada", "user")


def test_rows_of_ended_sign_ins_are_removed(portal: Portal) -> None:
    portal.signed_in()
    portal.clock.advance(13 * 3600)
    portal.world.run_maintenance()
    with portal.world.database.read() as session:
        assert session.scalars(sa.select(OidcToken)).all() == []
        assert len(session.scalars(sa.select(OidcUser)).all()) == 1
