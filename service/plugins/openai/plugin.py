"""OpenAI's API for fine-tuning, and the check of its base models."""

from collections.abc import Iterator
from pathlib import Path

from service.api.dependencies import AppState
from service.api.multipart import FORM_OVERHEAD
from service.api.plugin import Plugin
from service.core.settings import Settings
from service.plugins.openai.base_models import BaseModelEntry, BaseModels, ModelsFileError, models_file, parse_models
from service.plugins.openai.errors import PREFIX, missing_prefix_hint, openai_error
from service.plugins.openai.file_routes import router as file_router
from service.plugins.openai.model_folder import folder_problem
from service.plugins.openai.routes import fallback_router, router
from service.plugins.openai.service import FineTuneService
from service.plugins.openai.spec import entry_problems
from trainyard.contract.data_files import MAX_OPENAI_FILE_BYTES
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding

_FIX = "correct the file; docs/openai.md describes it"


def _make_fine_tunes(app_state: AppState) -> FineTuneService:
    settings = app_state.settings
    base_models, is_local = BaseModels(models_file(settings)), settings.backend == "local"
    return FineTuneService(app_state.database, app_state.files, base_models, f"org-{settings.instance}", is_local)


def models(settings: Settings) -> Finding:
    """Whether the file of base models is valid, and each model's folder is there."""
    path = models_file(settings)
    if not path.exists():
        if settings.models_file is not None:
            return error_finding("models", f"{path} does not exist", "create it, or unset TRAINYARD_MODELS_FILE")
        return ok_finding("models", f"OpenAI's API has no base models: {path} does not exist")
    try:
        entries = parse_models(path)
    except ModelsFileError as error:
        return error_finding("models", f"{path}: {error}", _FIX)
    problems = [f"{name}: {one}" for name, entry in entries.items() for one in _problems(settings, entry)]
    if problems:
        return error_finding("models", f"{path}: {'; '.join(problems)}", _FIX)
    return ok_finding("models", f"{path}: {', '.join(entries) or 'none'}")


def _problems(settings: Settings, entry: BaseModelEntry) -> Iterator[str]:
    yield from (f"spec.{problem}" for problem in entry_problems(entry))
    roots = settings.site.allowed_roots
    if not roots.contains(Path(entry.path)):
        yield f"{entry.path} is outside of TRAINYARD_ALLOWED_ROOTS"
    elif problem := roots.hidden_problem(Path(entry.path)):
        yield f"{entry.path} {problem}"
    elif problem := folder_problem(entry.path, shared=settings.backend == "local", template=True):
        yield problem


OPENAI = Plugin(
    name="openai",
    prefixes=(PREFIX,),
    routers=(router, file_router, fallback_router),
    render_error=openai_error,
    hint=missing_prefix_hint,
    body_limits={f"{PREFIX}files": MAX_OPENAI_FILE_BYTES + FORM_OVERHEAD},
    make_part=_make_fine_tunes,
    checks=(models,),
)
