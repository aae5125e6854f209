"""Texts that a model generated at an evaluation, as the run stores them in its artifacts."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from trainyard.contract.base import NonNegativeInt, Step
from trainyard.contract.spec.objectives import MAX_PROMPTS

FOLDER = "samples"
"""Folder of a job's artifacts with a file for each evaluation, named by its step."""
MAX_BYTES = 2**20
"""No file of samples is larger."""


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True)


class Sample(_Stored):
    """A prompt and the text that the model added to it."""

    prompt: str
    text: str
    tokens: NonNegativeInt
    """Generated tokens."""
    ended: bool
    """Whether the model ended the text; else it was cut."""


class SamplesRecord(_Stored):
    """The samples of an evaluation."""

    step: Step
    samples: Annotated[tuple[Sample, ...], Field(max_length=MAX_PROMPTS)]
