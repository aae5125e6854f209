"""The routes of the presets."""

from fastapi import APIRouter

from service.dependencies import PersonDep
from service.errors import NotFoundError
from service.jobs.schemas import page_of
from trainyard.contract.resources import Page
from trainyard.contract.templates import Template, UnknownTemplateError, load_template, template_names

router = APIRouter(prefix="/v1/templates", tags=["templates"])


@router.get("", operation_id="list_templates")
def list_templates(_person: PersonDep) -> Page[Template]:
    """The ready-made specs."""
    return page_of(template_names(), False, load_template, lambda template: template.name)


@router.get("/{name}", operation_id="get_template")
def get_template(_person: PersonDep, name: str) -> Template:
    """One ready-made spec, ready to POST."""
    try:
        return load_template(name)
    except UnknownTemplateError as error:
        raise NotFoundError(str(error), code="template_not_found", param="name") from None
