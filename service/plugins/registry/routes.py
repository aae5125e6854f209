"""Routes of registered models: list, get, register a version, move aliases, delete."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from service.api.dependencies import AppStateDep, EditorDep, NowDep, UserDep
from service.api.json_body import JsonRoute
from service.db.paging import PageRequest
from service.jobs.schemas import page_of
from service.plugins.registry.service import ModelRegistry
from trainyard.contract.base import MAX_SAFE_INT
from trainyard.contract.validation_messages import ALIAS_PATTERN, MODEL_NAME_PATTERN
from trainyard.contract.wire.models import (
    AliasRequest,
    ModelDetail,
    ModelResource,
    ModelVersionRequest,
    ModelVersionResource,
)
from trainyard.contract.wire.pages import Page

PREFIX = "/v1/models"

router = APIRouter(prefix=PREFIX, tags=["models"], route_class=JsonRoute)

ModelName = Annotated[str, Path(pattern=MODEL_NAME_PATTERN, description="Name of the registered model.")]
Alias = Annotated[str, Path(pattern=ALIAS_PATTERN, description="Name of a version that can be moved, such as `prod`.")]
Version = Annotated[int, Path(ge=1, le=MAX_SAFE_INT, description="Number of the version.")]


async def _get_registry(app_state: AppStateDep) -> ModelRegistry:
    return ModelRegistry(app_state.database, app_state.files_of, app_state.run_layout)


RegistryDep = Annotated[ModelRegistry, Depends(_get_registry)]


@router.get("", operation_id="list_models")
def list_all(
    registry: RegistryDep,
    _user: UserDep,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of results.")] = 100,
    after: Annotated[str | None, Query(max_length=100, description="The `last_id` of the previous page.")] = None,
) -> Page[ModelResource]:
    """List the registered models by name, without their versions."""
    request = PageRequest(limit=limit, after=after, descending=False)
    models, has_more = registry.list_page(request)
    return page_of(models, has_more, lambda model: model, lambda model: model.name)


@router.get("/{model_name}", operation_id="get_model")
def get(registry: RegistryDep, _user: UserDep, model_name: ModelName) -> ModelDetail:
    """Get a registered model with its versions, newest first."""
    return registry.read(model_name)


@router.post("/{model_name}/versions", status_code=201, operation_id="register_model_version")
def register(
    registry: RegistryDep, user: EditorDep, now: NowDep, model_name: ModelName, body: ModelVersionRequest
) -> ModelVersionResource:
    """Register the export of a job, or a checkpoint of a job that has ended, as the model's next version.

    A new name makes a new model. An export or checkpoint that is registered already keeps its number.
    """
    return registry.register(user, model_name, body, now)


@router.put("/{model_name}/aliases/{alias}", operation_id="set_model_alias")
def set_alias(
    registry: RegistryDep, user: EditorDep, now: NowDep, model_name: ModelName, alias: Alias, body: AliasRequest
) -> ModelDetail:
    """Let an alias such as `prod` name a version. An alias names one version at a time."""
    return registry.set_alias(user, model_name, alias, body.version, now)


@router.delete("/{model_name}/aliases/{alias}", status_code=204, operation_id="delete_model_alias")
def delete_alias(registry: RegistryDep, user: EditorDep, now: NowDep, model_name: ModelName, alias: Alias) -> None:
    """Delete an alias. The version stays."""
    registry.delete_alias(user, model_name, alias, now)


@router.delete("/{model_name}/versions/{version}", status_code=204, operation_id="delete_model_version")
def delete_version(
    registry: RegistryDep, user: EditorDep, now: NowDep, model_name: ModelName, version: Version
) -> None:
    """Delete a version that no alias names. The files belong to its job, which can be deleted then."""
    registry.delete_version(user, model_name, version, now)


@router.delete("/{model_name}", status_code=204, operation_id="delete_model")
def delete(registry: RegistryDep, user: EditorDep, model_name: ModelName) -> None:
    """Delete a registered model with its versions and aliases. The files belong to the jobs and stay."""
    registry.delete(user, model_name)
