"""The sections of a training spec that determine the updates: loss, optimizer, learning rate
schedule, and the average of the weights."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainyard.contract.base import (
    Float,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
)
from trainyard.contract.spec.sections import MAX_PATTERNS, NamePattern

_OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {"lion": {"betas": (0.9, 0.99)}, "muon": {"momentum": 0.95}}
"""Defaults of the optimizers that differ from AdamW's."""


class Optimizer(Strict):
    """The optimizer."""

    name: Literal["sgd", "adam", "adamw", "lion", "adafactor", "muon"] = "adamw"
    """`muon` trains the matrices of hidden layers with Muon; embeddings, norms, biases and the output layer with
    AdamW."""
    lr: PositiveFloat = 1e-3
    """Peak learning rate. It does not need to be scaled with the number of ranks. For `adafactor`, relative to the root
    mean square of each parameter. For `muon`, the learning rate of AdamW: Muon's updates are scaled to the same
    size."""
    weight_decay: NonNegativeFloat = 0.0
    """Added to the gradient for `sgd` and `adam`; decoupled for all others."""
    momentum: Fraction = 0.0
    """`sgd` and `muon` only; for `muon` the default is 0.95."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """`adam`, `adamw`, `lion`, and the part of `muon` that AdamW trains; for `lion` the default is `[0.9, 0.99]`."""
    eps: NonNegativeFloat = 1e-8
    """`adam`, `adamw`, and the part of `muon` that AdamW trains."""
    clip_norm: PositiveFloat | None = None
    """Maximum 2-norm of the global gradient. Absent: no clipping."""
    state_dtype: Literal["fp32", "bf16", "int8"] = "fp32"
    """Data type of the stored moments, for `adam`, `adamw`, `lion`, and `sgd` with momentum; updates compute in fp32.
    `bf16` rounds at random. `int8` has a scale for each 256 values; vectors and tensors with short rows stay in
    fp32."""
    no_decay: Annotated[tuple[Literal["norms", "biases", "embeddings"], ...], Field(max_length=3)] = ()
    """Parameters without weight decay: normalization layers, biases, embeddings."""
    lr_scale: dict[NamePattern, PositiveFloat] = Field(default_factory=dict, max_length=MAX_PATTERNS)
    """Factors of the learning rate by patterns of parameter names, such as `{"*.lora_B.*": 16}`. The first pattern that
    matches a name counts."""

    @model_validator(mode="before")
    @classmethod
    def _own_defaults(cls, values: Any) -> Any:
        """Add the defaults that depend on the name."""
        name = values.get("name") if isinstance(values, dict) else None
        return _OPTIMIZER_DEFAULTS.get(name, {}) | values if isinstance(name, str) else values


class Loss(Strict):
    """Terms of the training loss, for the tasks `causal_lm`, `sequence_classification` and `image_classification`. An
    evaluation reports the cross entropy alone."""

    label_smoothing: Annotated[Float, Field(ge=0, lt=1)] = 0.0
    """Part of a target's probability that is spread evenly over all classes or tokens (arXiv:1512.00567, section 7)."""
    neftune_alpha: NonNegativeFloat = 0.0
    """Noise on the embeddings of tokens in training (NEFTune, arXiv:2310.05914), for task `causal_lm`: uniform, bounded
    by this value divided by the square root of the row's number of tokens times the width; 5 is usual."""
    z_loss: NonNegativeFloat = 0.0
    """Weight of the squared logarithm of the softmax's normalizer, which keeps logits small (arXiv:2204.02311,
    section 5); 1e-4 is usual."""


class Ema(Strict):
    """An exponential moving average of the trained parameters. Checkpoints hold it beside the weights."""

    decay: Annotated[Float, Field(gt=0, lt=1)] = 0.999
    """An update sets the average to `decay` times itself plus `1 - decay` times the weights; the first update copies
    them."""
    every: PositiveInt = 1
    """Steps between updates of the average."""
    evaluate: bool = True
    """Evaluate the average instead of the weights."""
    export: bool = True
    """Export the average instead of the weights."""


class Schedule(Strict):
    """The learning rate schedule: linear warm-up from zero, then constant or decaying towards `final` times `lr`. The
    first step after the warm-up has `lr`; the step after the last would have `final` times `lr`."""

    name: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Shape after the warm-up. `wsd` is constant and decays linearly in the last part of the run."""
    warmup_steps: NonNegativeInt = 0
    """Steps of the warm-up."""
    warmup_ratio: Fraction = 0.0
    """Steps of the warm-up as a fraction of the run's; instead of `warmup_steps`."""
    decay_ratio: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.1
    """`wsd` only: the part of the run in which the rate decays, as a fraction of its steps."""
    final: Fraction = 0.0
    """Learning rate towards which the schedule decays, as a fraction of `lr`."""
