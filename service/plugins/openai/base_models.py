"""The models that clients of OpenAI's API can fine-tune: names that the administrator maps to folders and specs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from service.core.errors import InvalidRequestError
from service.core.settings import Settings
from service.plugins.openai.errors import ModelConfigurationError
from trainyard.contract.base import Path as SpecPath
from trainyard.contract.base import PositiveFloat, PositiveInt, Strict
from trainyard.contract.bounds import MAX_SPEC_BYTES, PlainMapping
from trainyard.contract.problems import SpecError, problems_of
from trainyard.contract.spec.yaml_loader import load_yaml

ModelName = Annotated[str, StringConstraints(max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
"""Name of a base model. It has no `:`, which separates the parts of a fine-tuned model's name."""

_RESERVED = (
    *("name", "task", "model", "epochs", "steps", "seed", "metadata", "objective", "batch.size", "optimizer.lr"),
    *("preference.beta", "data.source", "data.id", "data.digest", "data.eval_id", "data.eval_digest", "data.packing"),
)
"""Fields of a spec that each request determines."""
_INSTEAD = {
    "optimizer.lr": "`learning_rate` beside `spec` is the rate for a multiplier of 1",
    "epochs": "`limits.epochs` beside `spec` limits them",
    "model": "`path` beside `spec` is the model's folder",
}

_TRAINED_PARAMETERS = ("lora_rank", "lora", "trainable")
"""Fields of a spec that determine which parameters are trained, and how adapters are scaled."""
_FULL_LR, _ADAPTER_LR = 1e-5, 2e-4
_PREFERENCE_FACTOR = 0.1


def _check_reserved(spec: dict[str, Any]) -> dict[str, Any]:
    """Raise ValueError: the spec has a field that would be ignored."""
    for path in _RESERVED:
        section, _, name = path.rpartition(".")
        within = spec.get(section) if section else spec
        if isinstance(within, dict) and name in within:
            instead = f": {_INSTEAD[path]}" if path in _INSTEAD else ""
            raise ValueError(f"has `{path}`, which each request determines; remove it{instead}")
    return spec


class ModelLimits(Strict):
    """Upper bounds of a request; absent: no limit besides the service's own."""

    examples: PositiveInt | None = None
    """Examples of the training file."""
    epochs: PositiveInt | None = None
    examples_times_epochs: PositiveInt | None = None


class BaseModelEntry(Strict):
    """One model of the file."""

    path: SpecPath
    """Folder of the model in Hugging Face's form, below the allowed roots."""
    spec: Annotated[PlainMapping, AfterValidator(_check_reserved)] = Field(default_factory=lambda: {"lora_rank": 16})
    """Fields of a spec for its jobs, such as `gpus`, `strategy`, `precision`, `lora_rank` and `resources`; none that a
    request determines."""
    learning_rate: PositiveFloat | None = None
    """Learning rate of supervised jobs for a multiplier of 1. Absent: 2e-4 with adapters, 1e-5 without; a tenth of it
    for `dpo`."""
    limits: ModelLimits = ModelLimits()

    def base_learning_rate(self, *, preference: bool) -> float:
        """Return the learning rate for a multiplier of 1."""
        default = _FULL_LR if self.spec.get("lora_rank") is None else _ADAPTER_LR
        return (self.learning_rate or default) * (_PREFERENCE_FACTOR if preference else 1.0)

    def with_parameters_of(self, spec: Mapping[str, Any]) -> "BaseModelEntry":
        """Return the entry with the base model and the trained parameters of a job, whose weights fit no others.

        Args:
            spec: The job's spec.
        """
        fields = {name: value for name, value in self.spec.items() if name not in _TRAINED_PARAMETERS}
        fields |= {name: spec[name] for name in _TRAINED_PARAMETERS if spec.get(name) is not None}
        if "lora" in fields:
            # The adapter that the job started from is part of its weights.
            fields["lora"] = {name: value for name, value in fields["lora"].items() if name != "adapter"}
        return self.model_copy(update={"path": spec["model"]["path"], "spec": fields})


class _File(Strict):
    models: dict[ModelName, BaseModelEntry]


@dataclass(frozen=True)
class _Loaded:
    version: tuple[int, int]
    """Time of the last change and size of the file."""
    models: dict[str, BaseModelEntry]
    changed_at: datetime


def models_file(settings: Settings) -> Path:
    """Return the path of the file, which need not exist."""
    return settings.models_file or settings.state / "models.yaml"


@dataclass
class BaseModels:
    """The entries of `models.yaml`, which is read again when it changes."""

    path: Path
    _loaded: _Loaded | None = field(default=None)
    _failed: tuple[tuple[int, int], str] | None = field(default=None)
    """The version that is invalid, and why."""

    def all(self) -> dict[str, BaseModelEntry]:
        """Return the entries by name; none without a file. Raises ModelConfigurationError: the file is invalid."""
        loaded = self._load()
        return {} if loaded is None else loaded.models

    def changed_at(self) -> datetime:
        """Return when the file was last changed."""
        loaded = self._load()
        return datetime.fromtimestamp(0, UTC) if loaded is None else loaded.changed_at

    def get(self, name: str) -> BaseModelEntry:
        """Return an entry. Raises InvalidRequestError: there is none with this name."""
        models = self.all()
        if name in models:
            return models[name]
        known = ", ".join(sorted(models)) or "none; an administrator adds them to models.yaml"
        message = f"there is no base model {name[:120]!r} to fine-tune; this service has: {known}"
        raise InvalidRequestError(message, param="model", code="model_not_found")

    def _load(self) -> _Loaded | None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        version = (status.st_mtime_ns, status.st_size)
        if self._failed is not None and self._failed[0] == version:
            raise self._error(self._failed[1])
        if self._loaded is None or self._loaded.version != version:
            try:
                models = parse_models(self.path)
            except ModelsFileError as error:
                self._failed = version, str(error)
                structlog.get_logger("openai").error("models file invalid", file=str(self.path), reason=str(error))
                raise self._error(str(error)) from None
            self._loaded = _Loaded(version, models, datetime.fromtimestamp(int(status.st_mtime), UTC))
        return self._loaded

    def _error(self, reason: str) -> ModelConfigurationError:
        message = f"the administrator's file of models, {self.path.name}, is invalid; tell an administrator: {reason}"
        return ModelConfigurationError(message, code="models_file")


class ModelsFileError(Exception):
    """The file of models is invalid; the message names the field."""


def parse_models(path: Path) -> dict[str, BaseModelEntry]:
    """Return the entries of the file. Raises ModelsFileError: it is invalid."""
    try:
        with path.open("rb") as file:
            document: Any = load_yaml(file.read(MAX_SPEC_BYTES).decode())
        return dict(_File.model_validate(document).models)
    except ValidationError as error:
        raise ModelsFileError("; ".join(map(str, problems_of(error, model=_File)))) from None
    except (OSError, UnicodeDecodeError, SpecError) as error:
        raise ModelsFileError(str(error)) from None
