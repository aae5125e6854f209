"""What the claims of a user mean here."""

from typing import Any

import pytest

from service.plugins.oidc.errors import SignInRefusedError
from service.plugins.oidc.identity import Policy, decide_name, decide_role

ROLES = {"admins": "admin", "research": "user", "staff": "viewer"}


def policy(**changes: Any) -> Policy:
    values = {"name_claim": "name", "groups_claim": "groups", "roles": ROLES, "other_role": None}
    return Policy(**{**values, "email_domains": frozenset(), **changes})


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["research"], "user"),
        (["staff", "research"], "user"),
        (["staff", "admins", "others"], "admin"),
        ("staff", "viewer"),
        ([7, None, ["admins"], "staff"], "viewer"),
    ],
)
def test_role_with_most_rights_of_the_groups_wins(groups: Any, role: str) -> None:
    assert decide_role({"groups": groups}, policy()) == role


@pytest.mark.parametrize("groups", [None, [], ["Research"], ["research "], {"research": True}, "research,staff", 7])
def test_other_groups_give_no_role(groups: Any) -> None:
    with pytest.raises(SignInRefusedError, match="in none of the groups"):
        decide_role({"groups": groups}, policy())
    assert decide_role({"groups": groups}, policy(other_role="viewer")) == "viewer"


@pytest.mark.parametrize(
    ("email", "verified", "code"),
    [
        ("ada@example.org", True, None),
        ("ada@EXAMPLE.ORG", True, None),
        ("ada@example.org", False, "email_not_verified"),
        ("ada@example.org", 1, "email_not_verified"),
        ("ada@example.org.evil.example", True, "email_refused"),
        ("example.org", True, "email_refused"),
        (["ada@example.org"], True, "email_refused"),
        (None, True, "email_refused"),
    ],
)
def test_verified_address_of_a_domain_is_needed(email: Any, verified: Any, code: str | None) -> None:
    claims = {"groups": ["research"], "email": email, "email_verified": verified}
    one = policy(email_domains=frozenset({"example.org"}))
    if code is None:
        assert decide_role(claims, one) == "user"
    else:
        with pytest.raises(SignInRefusedError) as refused:
            decide_role(claims, one)
        assert refused.value.code == code


@pytest.mark.parametrize("name", ["ada", "ada.lovelace@example.org", "A-1+x", "a" * 64])
def test_claim_is_the_name(name: str) -> None:
    assert decide_name({"name": name}, policy()) == name


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (None, "name_missing"),
        ("", "name_missing"),
        (["ada"], "name_missing"),
        ("ada lovelace", "name_invalid"),
        ("ada\n", "name_invalid"),
        ("-ada", "name_invalid"),
        ("аda", "name_invalid"),  # noqa: RUF001 (a Cyrillic letter)
        ("a" * 65, "name_invalid"),
        ("Admin", "reserved_name"),
        ("service", "reserved_name"),
    ],
)
def test_claim_that_cannot_be_a_name_is_refused(name: Any, code: str) -> None:
    with pytest.raises(SignInRefusedError) as refused:
        decide_name({"name": name}, policy())
    assert refused.value.code == code


def test_policy_needs_only_the_claims_that_it_uses() -> None:
    assert policy(roles={}).claims == {"name"}
    assert policy(email_domains=frozenset({"x.org"})).claims == {"name", "groups", "email", "email_verified"}
