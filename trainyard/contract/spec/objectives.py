"""The objective of a language model's training, and the sections that belong to it."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trainyard.contract.base import Float, NonNegativeFloat, PositiveFloat, PositiveInt, Strict

Objective = Literal["sft", "dpo", "orpo", "kto", "simpo"]

PAIRED: frozenset[Objective] = frozenset({"dpo", "orpo", "simpo"})
"""Objectives that compare a chosen with a rejected answer."""
WITH_REFERENCE: frozenset[Objective] = frozenset({"dpo", "kto"})
"""Objectives that compare the model with its own state before the first step."""
DEFAULT_BETA: dict[Objective, float] = {"dpo": 0.1, "orpo": 0.1, "kto": 0.1, "simpo": 2.0}

MAX_PROMPTS = 16
MAX_PROMPT_LENGTH = 4096
MAX_NEW_TOKENS = 1024

Prompt = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PROMPT_LENGTH, pattern=r"^[^\x00]*$")]
"""The beginning of a text that a model continues."""


class Preference(Strict):
    """Parameters of the objectives that learn from preferences, named as in TRL."""

    beta: PositiveFloat | None = None
    """Scale of the rewards, and for `orpo` the weight of the odds ratio. Absent: 0.1; for `simpo` 2."""
    loss_type: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    """`dpo` only: the loss of a difference of rewards, as in DPO (arXiv:2305.18290), SLiC (arXiv:2305.10425) or IPO
    (arXiv:2310.12036)."""
    label_smoothing: Annotated[Float, Field(ge=0, lt=0.5)] = 0.0
    """`dpo` with `sigmoid` only: the probability that a preference was recorded the wrong way round."""
    simpo_gamma: NonNegativeFloat = 1.0
    """`simpo` only: target margin between the rewards of the chosen and the rejected answer."""
    desirable_weight: PositiveFloat = 1.0
    """`kto` only: the weight of the loss of desirable answers."""
    undesirable_weight: PositiveFloat = 1.0
    """`kto` only: the weight of the loss of undesirable answers."""


class Samples(Strict):
    """Texts that the model generates at each evaluation, to be read. They are artifacts of the job, and appear on its
    page and in `trainyard samples`."""

    prompts: Annotated[tuple[Prompt, ...], Field(min_length=1, max_length=MAX_PROMPTS)]
    """The text that the model continues."""
    chat: bool = False
    """Each prompt is a user's message that the model answers, written with its chat template; `hf` models only."""
    max_new_tokens: Annotated[PositiveInt, Field(le=MAX_NEW_TOKENS)] = 64
    """Tokens to generate for each prompt, unless the model ends the text before."""
    temperature: NonNegativeFloat = 0.0
    """0: always the most probable token. Else tokens are sampled from the logits divided by this value, with the same
    random numbers at each evaluation."""
