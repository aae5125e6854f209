"""The pages of registered models: their table, and the versions of a model."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from service.api.json_body import SlotRoute
from service.db.paging import PageRequest
from service.plugins.registry.routes import ModelName, RegistryDep
from service.web.dependencies import PagesDep, VisitorDep

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

PATH = "/models"
_MAX_ROWS = 200


@router.get(PATH)
def show_models(registry: RegistryDep, pages: PagesDep, visitor: VisitorDep) -> HTMLResponse:
    """Return the table of registered models."""
    models, has_more = registry.list_page(PageRequest(limit=_MAX_ROWS, descending=False))
    rows = [model.model_dump(mode="json") for model in models]
    return pages.render("models.html", visitor, section=PATH, model=None, has_more=has_more, data={"models": rows})


@router.get(f"{PATH}/{{model_name}}")
def show_model(registry: RegistryDep, pages: PagesDep, visitor: VisitorDep, model_name: ModelName) -> HTMLResponse:
    """Return the versions of a registered model, with the job, the data and the base of each."""
    model = registry.read(model_name)
    return pages.render(
        "models.html", visitor, section=PATH, model=model, has_more=False, data={"model": model.model_dump(mode="json")}
    )
