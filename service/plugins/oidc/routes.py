"""Routes of the users who sign in by the provider, for administrators."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from service.api.dependencies import AdminDep, AppStateDep, NowDep
from service.api.json_body import JsonRoute
from service.core.resources import resource_of
from service.db.models import OidcUser
from service.db.paging import PageRequest
from service.jobs.schemas import page_of
from service.plugins.oidc.part import part_of
from service.plugins.oidc.users import list_page, set_user
from trainyard.contract.validation_messages import USER_NAME_PATTERN
from trainyard.contract.wire.pages import Page
from trainyard.contract.wire.sign_in import OidcUserRequest, OidcUserResource

PREFIX = "/v1/oidc-users"

router = APIRouter(prefix=PREFIX, tags=["access"], route_class=JsonRoute)


@router.get("", operation_id="list_oidc_users")
def list_all(
    app_state: AppStateDep,
    _admin: AdminDep,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of results.")] = 100,
    after: Annotated[str | None, Query(max_length=128, description="The `last_id` of the previous page.")] = None,
) -> Page[OidcUserResource]:
    """List the users who have signed in by the OpenID provider, by name."""
    users, has_more = list_page(app_state.database, PageRequest(limit=limit, after=after, descending=False))
    return page_of(users, has_more, _resource, lambda user: user.name)


@router.put("/{oidc_user}", operation_id="set_oidc_user")
def set_one(
    app_state: AppStateDep,
    _admin: AdminDep,
    now: NowDep,
    oidc_user: Annotated[str, Path(max_length=64, pattern=USER_NAME_PATTERN, description="Name of the user.")],
    body: OidcUserRequest,
) -> OidcUserResource:
    """Let a subject of the provider sign in as the user of this name, with its jobs and secrets, or disable the user.

    A subject that belonged to the name before loses the tokens of its sign-ins.
    """
    identity = (part_of(app_state).provider.issuer, body.subject) if body.subject is not None else None
    return _resource(set_user(app_state.database, oidc_user, identity, now, disabled=body.disabled))


def _resource(user: OidcUser) -> OidcUserResource:
    return resource_of(OidcUserResource, user)
