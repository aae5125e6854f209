"""The routes of the presets."""

from collections.abc import Mapping
from functools import cache

from fastapi import APIRouter

from service.api.dependencies import UserDep
from service.core.errors import NotFoundError
from service.jobs.schemas import page_of
from trainyard.contract.spec.templates import Template, load_template, template_names
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/templates", tags=["templates"])


@cache
def presets() -> Mapping[str, Template]:
    """All, by name. Read when the application is made: no request reads the installation's files."""
    return {name: load_template(name) for name in template_names()}


@router.get("", operation_id="list_templates")
def list_templates(_user: UserDep) -> Page[Template]:
    """The ready-made specs."""
    return page_of(list(presets().values()), False, lambda template: template, lambda template: template.name)


@router.get("/{name}", operation_id="get_template")
def get_template(_user: UserDep, name: str) -> Template:
    """One ready-made spec, ready to POST."""
    if (found := presets().get(name)) is None:
        words = f"there is no template {name!r}; there are: {', '.join(presets())}"
        raise NotFoundError(words, code="template_not_found", param="name")
    return found
