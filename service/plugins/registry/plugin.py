"""The registry of models: names, and versions of them that are exports or checkpoints of jobs."""

from service.api.plugin import PageLink, Plugin
from service.plugins.registry.pages import PATH
from service.plugins.registry.pages import router as pages
from service.plugins.registry.routes import PREFIX, router

REGISTRY = Plugin(
    name="registry",
    prefixes=(PREFIX,),
    routers=(router,),
    pages=(pages,),
    resource_pages={"model": PATH},
    navigation=(PageLink(PATH, "Models"),),
    templates="service.plugins.registry",
)
