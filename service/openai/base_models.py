"""The models that clients of OpenAI's API can fine-tune: names that the administrator maps to folders and specs."""

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from service.core.errors import InvalidRequestError, UnavailableError
from trainyard.contract.base import Path as SpecPath
from trainyard.contract.base import PositiveFloat, PositiveInt, Strict
from trainyard.contract.bounds import MAX_SPEC_BYTES, PlainMapping
from trainyard.contract.problems import SpecError, problems_of
from trainyard.contract.spec.yaml_loader import load_yaml

ModelName = Annotated[str, StringConstraints(max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
"""Name of a base model. It has no `:`, which separates the parts of a fine-tuned model's name."""

_FULL_LR, _ADAPTER_LR = 1e-5, 2e-4
_PREFERENCE_FACTOR = 0.1


class ModelLimits(Strict):
    """The most that one job may request; absent: no limit beside those of the service."""

    examples: PositiveInt | None = None
    """Examples of the training file."""
    epochs: PositiveInt | None = None
    examples_times_epochs: PositiveInt | None = None


class BaseModelEntry(Strict):
    """One model of the file."""

    path: SpecPath
    """Folder of the model in Hugging Face's form, below the allowed roots."""
    spec: PlainMapping = Field(default_factory=lambda: {"lora_rank": 16})
    """Fields of a spec for its jobs, such as `gpus`, `strategy`, `precision`, `lora_rank` and `resources`. They replace
    what the request would set, except for the data, the objective and the hyperparameters that it names."""
    learning_rate: PositiveFloat | None = None
    """Learning rate of supervised jobs for a multiplier of 1. Absent: 2e-4 with adapters, 1e-5 without; a tenth of it
    for `dpo`."""
    limits: ModelLimits = ModelLimits()

    def base_learning_rate(self, *, preference: bool) -> float:
        """Return the learning rate for a multiplier of 1."""
        default = _FULL_LR if self.spec.get("lora_rank") is None else _ADAPTER_LR
        return (self.learning_rate or default) * (_PREFERENCE_FACTOR if preference else 1.0)


class _File(Strict):
    models: dict[ModelName, BaseModelEntry]


@dataclass(frozen=True)
class _Loaded:
    version: tuple[int, int]
    """Time of the last change and size of the file."""
    models: dict[str, BaseModelEntry]
    changed_at: datetime


@dataclass
class BaseModels:
    """The entries of `models.yaml`, which is read again when it changes."""

    path: Path
    _loaded: _Loaded | None = field(default=None)

    def all(self) -> dict[str, BaseModelEntry]:
        """Return the entries by name; none without a file.

        Raises:
            UnavailableError: The file is invalid.
        """
        loaded = self._load()
        return {} if loaded is None else loaded.models

    def changed_at(self) -> datetime:
        """Return when the file was last changed."""
        loaded = self._load()
        return datetime.fromtimestamp(0, UTC) if loaded is None else loaded.changed_at

    def get(self, name: str) -> BaseModelEntry:
        """Return an entry.

        Raises:
            InvalidRequestError: There is none with this name.
        """
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
        if self._loaded is None or self._loaded.version != version:
            self._loaded = _Loaded(version, _parse(self.path), datetime.fromtimestamp(int(status.st_mtime), UTC))
        return self._loaded


def _parse(path: Path) -> dict[str, BaseModelEntry]:
    try:
        with path.open("rb") as file:
            document: Any = load_yaml(file.read(MAX_SPEC_BYTES).decode())
        return dict(_File.model_validate(document).models)
    except ValidationError as error:
        reason = str(problems_of(error, model=_File)[0])
    except (OSError, UnicodeDecodeError, SpecError) as error:
        reason = str(error)
    raise UnavailableError(f"the administrator's file of models, {path.name}, is invalid: {reason}", code="models_file")
