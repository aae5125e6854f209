"""Routes of secrets: the caller's secrets, and for administrators any user's secrets."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from service.api.dependencies import AppStateDep, EditorDep, NowDep, UserDep
from service.api.json_body import JsonRoute
from service.db.models import Secret
from service.jobs.schemas import page_of
from trainyard.contract.validation_messages import MAX_VARIABLE_NAME, VARIABLE_PATTERN
from trainyard.contract.wire.access import SecretRequest, SecretResource, UserName
from trainyard.contract.wire.pages import Page

SecretName = Annotated[
    str,
    Path(
        description="Name of the environment variable.",
        json_schema_extra={"pattern": VARIABLE_PATTERN, "maxLength": MAX_VARIABLE_NAME},
    ),
]
"""The service checks the name, because an error for a path's parameter would quote it, and it may be a value by
mistake."""

OwnerName = Annotated[UserName | None, Query(description="Administrators: the user whose secrets these are.")]

router = APIRouter(prefix="/v1/secrets", tags=["access"], route_class=JsonRoute)


@router.get("", operation_id="list_secrets")
def list_all(app_state: AppStateDep, caller: UserDep, user: OwnerName = None) -> Page[SecretResource]:
    """List the names of your secrets, or as an administrator the names of a user's secrets. No route returns a
    value."""
    return page_of(app_state.secrets.list_all(caller, user), False, _secret_resource, lambda secret: secret.name)


@router.put("/{secret_name}", operation_id="set_secret")
def put(
    app_state: AppStateDep, caller: EditorDep, now: NowDep, secret_name: SecretName, body: SecretRequest
) -> SecretResource:
    """Store a secret of yours, or replace its value. Jobs that start later get the new value."""
    return _secret_resource(app_state.secrets.store(caller, secret_name, body.value, now))


@router.delete("/{secret_name}", status_code=204, operation_id="delete_secret")
def delete(app_state: AppStateDep, caller: EditorDep, secret_name: SecretName, user: OwnerName = None) -> None:
    """Delete a secret of yours, or as an administrator a user's secret. Jobs that name it and start later fail."""
    app_state.secrets.delete(caller, secret_name, user)


def _secret_resource(secret: Secret) -> SecretResource:
    return SecretResource(name=secret.name, created_at=secret.created_at, updated_at=secret.updated_at)
