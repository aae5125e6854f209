"""The check of the base models of OpenAI's API: whether jobs can be made of each entry of the file."""

from collections.abc import Iterator
from pathlib import Path

from service.core.settings import Settings
from service.plugins.openai.base_models import BaseModelEntry, ModelsFileError, models_file, parse_models
from service.plugins.openai.model_folder import folder_problem
from service.plugins.openai.spec import entry_problems
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding

_FIX = "correct the file; docs/openai.md describes it"


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
