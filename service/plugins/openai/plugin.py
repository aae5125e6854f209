"""OpenAI's API for fine-tuning."""

from service.api.dependencies import AppState
from service.api.multipart import FORM_OVERHEAD
from service.api.plugin import Plugin
from service.plugins.openai.base_models import BaseModels, models_file
from service.plugins.openai.check import models
from service.plugins.openai.errors import PREFIX, missing_prefix_hint, openai_error
from service.plugins.openai.file_routes import router as file_router
from service.plugins.openai.routes import fallback_router, router
from service.plugins.openai.service import FineTuneService
from trainyard.contract.data_files import MAX_OPENAI_FILE_BYTES


def _make_fine_tunes(app_state: AppState) -> FineTuneService:
    settings = app_state.settings
    base_models, is_local = BaseModels(models_file(settings)), settings.backend == "local"
    return FineTuneService(app_state.database, app_state.files, base_models, f"org-{settings.instance}", is_local)


OPENAI = Plugin(
    name="openai",
    prefix=PREFIX,
    routers=(router, file_router, fallback_router),
    render_error=openai_error,
    hint=missing_prefix_hint,
    body_limits={f"{PREFIX}files": MAX_OPENAI_FILE_BYTES + FORM_OVERHEAD},
    make_part=_make_fine_tunes,
    checks=(models,),
)
