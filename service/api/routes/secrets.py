"""Routes of the caller's secrets."""

from fastapi import APIRouter

from service.api.dependencies import AppStateDep, NowDep, UserDep
from service.db.models import Secret
from service.jobs.schemas import page_of
from trainyard.contract.wire.access import SecretRequest, SecretResource
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/secrets", tags=["access"])


@router.get("", operation_id="list_secrets")
def list_all(services: AppStateDep, user: UserDep) -> Page[SecretResource]:
    """List the names of your secrets. No route returns a value."""
    return page_of(services.secrets.list_all(user), False, _secret_resource, lambda secret: secret.name)


@router.put("/{secret_name}", operation_id="set_secret")
def put(services: AppStateDep, user: UserDep, now: NowDep, secret_name: str, body: SecretRequest) -> SecretResource:
    """Store a secret of yours, or replace its value. Jobs that start later get the new value."""
    return _secret_resource(services.secrets.store(user, secret_name, body.value, now))


@router.delete("/{secret_name}", status_code=204, operation_id="delete_secret")
def delete(services: AppStateDep, user: UserDep, secret_name: str) -> None:
    """Delete a secret of yours. Jobs that name it and start later fail."""
    services.secrets.delete(user, secret_name)


def _secret_resource(secret: Secret) -> SecretResource:
    return SecretResource(name=secret.name, created_at=secret.created_at, updated_at=secret.updated_at)
