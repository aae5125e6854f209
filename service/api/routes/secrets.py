"""Routes of the caller's secrets."""

from typing import Annotated

from fastapi import APIRouter, Path

from service.api.dependencies import AppStateDep, NowDep, UserDep
from service.db.models import Secret
from service.jobs.schemas import page_of
from trainyard.contract.validation_messages import MAX_VARIABLE_NAME, VARIABLE_PATTERN
from trainyard.contract.wire.access import SecretRequest, SecretResource
from trainyard.contract.wire.pages import Page

SecretName = Annotated[str, Path(json_schema_extra={"pattern": VARIABLE_PATTERN, "maxLength": MAX_VARIABLE_NAME})]
"""Checked by the service, because an error for a path's parameter would quote what may be a value by mistake."""

router = APIRouter(prefix="/v1/secrets", tags=["access"])


@router.get("", operation_id="list_secrets")
def list_all(app_state: AppStateDep, user: UserDep) -> Page[SecretResource]:
    """List the names of your secrets. No route returns a value."""
    return page_of(app_state.secrets.list_all(user), False, _secret_resource, lambda secret: secret.name)


@router.put("/{secret_name}", operation_id="set_secret")
def put(
    app_state: AppStateDep, user: UserDep, now: NowDep, secret_name: SecretName, body: SecretRequest
) -> SecretResource:
    """Store a secret of yours, or replace its value. Jobs that start later get the new value."""
    return _secret_resource(app_state.secrets.store(user, secret_name, body.value, now))


@router.delete("/{secret_name}", status_code=204, operation_id="delete_secret")
def delete(app_state: AppStateDep, user: UserDep, secret_name: SecretName) -> None:
    """Delete a secret of yours. Jobs that name it and start later fail."""
    app_state.secrets.delete(user, secret_name)


def _secret_resource(secret: Secret) -> SecretResource:
    return SecretResource(name=secret.name, created_at=secret.created_at, updated_at=secret.updated_at)
