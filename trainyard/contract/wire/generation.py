"""Messages between the command `generate` and the process that runs the model, a JSON document per line."""

from typing import Annotated, Literal

from pydantic import Field

from trainyard.contract.base import NonNegativeInt, PositiveInt, Resource

Finish = Literal["stop", "length"]


class GenerationSettings(Resource):
    """Settings of text generation."""

    max_new_tokens: PositiveInt = 256
    """Bounded by the context of the model."""
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.0
    """0: always the most likely token."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed of the sampling; used if `temperature` is not 0."""
    chat: bool = False
    """Whether the prompt is a user's message, to be formatted by the tokenizer's chat template."""


class GenerationRequest(Resource):
    """A model, and the text that it continues."""

    folder: str
    base: str | None = None
    """The folder of the base model on this machine."""
    prompt: str
    settings: GenerationSettings


class GenerationUpdate(Resource):
    """A chunk of the text, the result, or the error that ended the generation."""

    phase: Literal["text", "done", "failed"]
    text: str = ""
    """The next chunk; when the generation is done, the whole text."""
    prompt_tokens: NonNegativeInt = 0
    new_tokens: NonNegativeInt = 0
    finish: Finish | None = None
    """`stop`: the model ended the text. `length`: the limit of tokens was reached. Set when it is done."""
    message: str = ""
    """The error."""
