"""What a user may do in a project, as a table, and the errors."""

import itertools
from typing import Any

import pytest

from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError, InvalidSpecError, PermissionDeniedError
from service.projects.rules import (
    Access,
    ProjectFacts,
    access_of,
    check_move,
    check_name,
    check_project_quota,
    may_change_job,
    project_key,
    require_submit,
)

NONE, READ, SUBMIT, MANAGE = Access


def user(role: Any = "user", name: str = "ada", project: str | None = None) -> Principal:
    return Principal(kind="user", id="0", name=name, role=role, project=project)


def facts(role: Any = None, *, private: bool = True, name: str = "zoo", **limits: int) -> ProjectFacts:
    return ProjectFacts(name, private, role, **limits)


@pytest.mark.parametrize(
    ("role", "member", "private", "expected"),
    [
        *[("admin", member, private, MANAGE) for member in (None, "viewer") for private in (True, False)],
        ("user", None, True, NONE),
        ("user", None, False, READ),
        *[("user", "viewer", private, READ) for private in (True, False)],
        *[("user", "member", private, SUBMIT) for private in (True, False)],
        *[("user", "manager", private, MANAGE) for private in (True, False)],
        ("viewer", None, True, NONE),
        *[("viewer", member, True, READ) for member in ("viewer", "member", "manager")],
        ("viewer", None, False, READ),
    ],
)
def test_access_follows_from_both_roles(role: Any, member: Any, private: bool, expected: Access) -> None:
    assert access_of(user(role), facts(member, private=private)) is expected


@pytest.mark.parametrize(("role", "expected"), [("admin", MANAGE), ("user", SUBMIT), ("viewer", READ)])
def test_a_label_is_for_everybody(role: Any, expected: Access) -> None:
    assert access_of(user(role), None) is expected


def test_a_project_token_is_worth_nothing_elsewhere_and_manages_nothing() -> None:
    for role, member in itertools.product(("user", "viewer", "admin"), (None, "viewer", "member", "manager")):
        token = user(role, project="zoo")
        assert access_of(token, None) is NONE
        assert access_of(token, facts(member, name="Zoo")) is NONE
        assert access_of(token, facts(member)) <= min(SUBMIT, access_of(user(role), facts(member)))
    assert access_of(user(project="zoo"), facts("manager")) is SUBMIT


@pytest.mark.parametrize(
    ("principal", "owner", "project", "expected"),
    [
        (user(), "ada", None, True),
        (user(), "bob", None, False),
        (user(), "bob", facts("member"), True),
        (user(), "bob", facts("viewer"), False),
        (user(), "ada", facts("viewer"), True),
        (user(), "ada", facts(None), False),
        (user(), "ada", facts(None, private=False), True),
        (user(), "bob", facts(None, private=False), False),
        (user("viewer"), "ada", facts("manager"), False),
        (user("admin"), "bob", facts(None), True),
        (user(project="zoo"), "ada", None, False),
        (user(project="zoo"), "bob", facts("member"), True),
    ],
)
def test_members_change_jobs_of_their_project(
    principal: Principal, owner: str, project: ProjectFacts | None, expected: bool
) -> None:
    assert may_change_job(principal, owner, project) is expected


@pytest.mark.parametrize(
    "names",
    [("Zoo", "zoo", "ZOO"), ("Straße", "STRASSE", "strasse"), ("\uff3aoo", "zoo"), ("Zoë", "Zoe\u0308", "ZOË")],
)
def test_spellings_of_a_name_are_one_project(names: tuple[str, ...]) -> None:
    assert len({project_key(name) for name in names}) == 1


@pytest.mark.parametrize("name", [" zoo", "zoo ", "a/b", ".", "..", "   "])
def test_names_that_are_no_segment_of_a_path_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_name(name)


def test_only_members_move_jobs_into_and_out_of_a_project() -> None:
    member, viewer, other = facts("member"), facts("viewer"), facts(None, private=False)
    check_move(user(), member, None, ended=False)
    check_move(user(), None, member, ended=False)
    for closed in (viewer, other):
        for source, target in ((closed, None), (None, closed), (member, closed), (closed, member)):
            with pytest.raises(PermissionDeniedError):
                check_move(user(), source, target, ended=True)


@pytest.mark.parametrize("limits", [{"max_gpus": 8}, {"max_queued": 8}])
def test_an_unfinished_job_stays_where_a_quota_counts_it(limits: dict[str, int]) -> None:
    limited = facts("manager", **limits)
    for source, target in ((limited, None), (None, limited)):
        with pytest.raises(ConflictError, match="'zoo' has a quota"):
            check_move(user(), source, target, ended=False)
        check_move(user(), source, target, ended=True)
        check_move(user("admin"), source, target, ended=False)


def test_quotas_name_the_project_the_limit_and_the_remedy() -> None:
    project = facts("member", max_gpus=4, max_queued=2)
    with pytest.raises(InvalidSpecError, match=r"quota of 4 GPUs of the project 'zoo'; use fewer"):
        check_project_quota(project, gpus=5, queued=0)
    with pytest.raises(ConflictError, match=r"project 'zoo' has 2 queued jobs; its quota is 2: cancel some"):
        check_project_quota(project, gpus=4, queued=2)
    check_project_quota(project, gpus=4, queued=0, count=2)
    check_project_quota(None, gpus=99, queued=10**6)


def test_a_refusal_of_a_token_names_its_project() -> None:
    with pytest.raises(PermissionDeniedError, match="'zoo'; name it in the spec"):
        require_submit(user(project="zoo"), None)
    with pytest.raises(PermissionDeniedError, match="only members of the project 'zoo'"):
        require_submit(user(), facts("viewer"))
