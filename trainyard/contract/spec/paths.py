"""Which paths a spec may name: those under the folders that the administrator allows. Pure text, no file is touched."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from trainyard.contract.problems import Problem
from trainyard.contract.spec.sections import HfModel, JsonlData
from trainyard.contract.spec.training_spec import TrainingSpec


def outside(spec: TrainingSpec, roots: tuple[str, ...]) -> list[Problem]:
    """Every path of a model or of data that is not under one of the roots, with what would be."""
    return [Problem(param=param, message=message) for param, path in _paths(spec) if (message := _refusal(path, roots))]


def _paths(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    if isinstance(spec.model, HfModel):
        yield "model.path", spec.model.path
    if isinstance(spec.data, JsonlData):
        yield "data.path", spec.data.path
        if spec.data.eval_path is not None:
            yield "data.eval_path", spec.data.eval_path


def _refusal(text: str, roots: tuple[str, ...]) -> str | None:
    path = PurePosixPath(text)
    if not path.is_absolute():
        return "is not an absolute path, and the workers have another current folder than you"
    if ".." in path.parts:
        return "holds `..`; write the path that it stands for"
    if not any(path.is_relative_to(root) for root in roots):
        allowed = ", ".join(roots) or "none"
        return f"lies outside of the folders that this service allows (TRAINYARD_ALLOWED_ROOTS): {allowed}"
    return None
