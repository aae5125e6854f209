"""The values that `auto` stands for. Pure functions; docs/openai.md states the rules."""

from dataclasses import dataclass
from math import ceil
from typing import Literal

_TARGET_EPOCHS = 3
_MIN_EXAMPLES, _MAX_EXAMPLES = 100, 25_000
"""Examples of all epochs together between which the target holds."""
_MAX_EPOCHS = 25
_BATCH_FRACTION = 0.002
_MAX_BATCH = 256
_DEFAULT_BETA = 0.1

Auto = Literal["auto"]


@dataclass(frozen=True)
class Hyperparameters:
    """The values of a job."""

    n_epochs: int
    batch_size: int
    learning_rate_multiplier: float
    beta: float

    @property
    def supervised(self) -> dict[str, int | float]:
        """The values of a supervised job, as OpenAI's API names them."""
        return {
            "n_epochs": self.n_epochs,
            "batch_size": self.batch_size,
            "learning_rate_multiplier": self.learning_rate_multiplier,
        }

    @property
    def dpo(self) -> dict[str, int | float]:
        return {**self.supervised, "beta": self.beta}


def choose_epochs(requested: Auto | int | None, examples: int) -> int:
    """Return the number of epochs. `auto` is 3, more for a small file and fewer for a large file.

    With fewer than 34 examples, as many as give 100 examples in all, at most 25; with more than 8,333, as many as give
    25,000, at least 1.
    """
    if isinstance(requested, int):
        return requested
    if examples * _TARGET_EPOCHS < _MIN_EXAMPLES:
        return min(_MAX_EPOCHS, ceil(_MIN_EXAMPLES / examples))
    if examples * _TARGET_EPOCHS > _MAX_EXAMPLES:
        return max(1, _MAX_EXAMPLES // examples)
    return _TARGET_EPOCHS


def choose_batch_size(requested: Auto | int | None, examples: int, gpus: int) -> int:
    """Return the number of examples in a batch. `auto` is 0.2 % of the file, at least one for each GPU, at most 256."""
    if isinstance(requested, int):
        return requested
    return min(max(round(examples * _BATCH_FRACTION), gpus, 1), max(_MAX_BATCH, gpus))


def choose_multiplier(requested: Auto | float | None) -> float:
    """Return the factor of the model's learning rate; `auto` is 1."""
    return 1.0 if requested is None or isinstance(requested, str) else float(requested)


def choose_beta(requested: Auto | float | None) -> float:
    """Return `beta` of DPO; `auto` is 0.1."""
    return _DEFAULT_BETA if requested is None or isinstance(requested, str) else float(requested)
