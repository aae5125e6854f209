"""The bodies that OpenAI's clients send."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from trainyard.contract.base import CONTROL_FREE_PATTERN, PositiveFloat, PositiveInt, Strict

Auto = Literal["auto"]
MetadataKey = Annotated[str, StringConstraints(max_length=64, pattern=CONTROL_FREE_PATTERN)]
MetadataValue = Annotated[str, StringConstraints(max_length=512, pattern=CONTROL_FREE_PATTERN)]
Suffix = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class SupervisedHyperparameters(Strict):
    """Hyperparameters of a supervised job."""

    batch_size: Auto | Annotated[PositiveInt, Field(le=65_536)] | None = None
    learning_rate_multiplier: Auto | PositiveFloat | None = None
    n_epochs: Auto | Annotated[PositiveInt, Field(le=1000)] | None = None


class DpoHyperparameters(SupervisedHyperparameters):
    """Hyperparameters of a DPO job."""

    beta: Auto | PositiveFloat | None = None


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
