"""The bodies that OpenAI's clients send."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from trainyard.contract.base import CONTROL_FREE_PATTERN, PositiveFloat, PositiveInt, Strict, one_of

_MAX_BATCH_SIZE, _MAX_EPOCHS = 65_536, 1000
_NOT_IN_SUFFIX = re.compile(r"[^A-Za-z0-9._-]")


def _check_suffix(suffix: str) -> str:
    """Raise ValueError: it has a character that the names of models cannot have."""
    allowed = "use letters and digits of ASCII, `.`, `_` and `-`, and a letter or digit first"
    if refused := _NOT_IN_SUFFIX.search(suffix):
        raise ValueError(f"contains {refused[0]!a}; {allowed}")
    if not suffix[0].isalnum():
        raise ValueError(f"starts with {suffix[0]!r}; {allowed}")
    return suffix


Auto = Literal["auto"]
MetadataKey = Annotated[str, StringConstraints(max_length=64, pattern=CONTROL_FREE_PATTERN)]
MetadataValue = Annotated[str, StringConstraints(max_length=512, pattern=CONTROL_FREE_PATTERN)]
Suffix = Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(_check_suffix)]
_BatchSize = Annotated[
    Auto | Annotated[PositiveInt, Field(le=_MAX_BATCH_SIZE)],
    one_of(f"a whole number from 1 to {_MAX_BATCH_SIZE}, or 'auto'"),
]
_Epochs = Annotated[
    Auto | Annotated[PositiveInt, Field(le=_MAX_EPOCHS)], one_of(f"a whole number from 1 to {_MAX_EPOCHS}, or 'auto'")
]
_Factor = Annotated[Auto | PositiveFloat, one_of("a number greater than 0, or 'auto'")]


class SupervisedHyperparameters(Strict):
    """Hyperparameters of a supervised job."""

    batch_size: _BatchSize | None = None
    learning_rate_multiplier: _Factor | None = None
    n_epochs: _Epochs | None = None


class DpoHyperparameters(SupervisedHyperparameters):
    """Hyperparameters of a DPO job."""

    beta: _Factor | None = None


class SupervisedMethod(Strict):
    hyperparameters: SupervisedHyperparameters | None = None


class DpoMethod(Strict):
    hyperparameters: DpoHyperparameters | None = None


class Method(Strict):
    """The method of fine-tuning; `reinforcement` is refused by its name."""

    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: SupervisedMethod | None = None
    dpo: DpoMethod | None = None
    reinforcement: Any = None


class CreateJob(Strict):
    """The body of `fine_tuning.jobs.create`."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=400)]
    training_file: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    validation_file: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    hyperparameters: SupervisedHyperparameters | None = None
    method: Method | None = None
    suffix: Suffix | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    integrations: list[Any] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
