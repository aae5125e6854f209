"""Routes of the presets."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Path

from service.api.dependencies import UserDep
from service.api.json_body import SlotRoute
from service.core.errors import NotFoundError
from service.jobs.schemas import page_of
from trainyard.contract.spec.templates import Template, load_template, template_names
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/templates", tags=["templates"], route_class=SlotRoute)


@cache
def templates_by_name() -> Mapping[str, Template]:
    """Return all presets by name; read once, when the application is built."""
    return {name: load_template(name) for name in template_names()}


@router.get("", operation_id="list_templates")
def list_templates(_user: UserDep) -> Page[Template]:
    """List the presets: ready-made specs."""
    return page_of(list(templates_by_name().values()), False, lambda template: template, lambda template: template.name)


@router.get("/{name}", operation_id="get_template")
def get_template(_user: UserDep, name: Annotated[str, Path(description="Name of the preset.")]) -> Template:
    """Get a preset, whose spec can be submitted unchanged."""
    if (template := templates_by_name().get(name)) is None:
        message = f"there is no template {name!r}; available: {', '.join(templates_by_name())}"
        raise NotFoundError(message, code="template_not_found", param="name")
    return template
