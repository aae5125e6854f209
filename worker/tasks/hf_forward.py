"""The forward of a Hugging Face model as the engine calls it, and the traits of the model on which it depends."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from worker.core.errors import RefusedError
from worker.tasks.cross_entropy import PLAIN, Terms, cross_entropy_of
from worker.tasks.hf_attention import Probe, boundary_arguments, probed_attention, use_kernel
from worker.tasks.language_loss import LogitRule, at_positions, head_loss
from worker.tasks.packing import KernelFit, boundaries_of

_PROBE_TOKENS = 8
_SCALES = ("logit_scale", "lm_head_multiplier")
_DIVISOR = "logits_scaling"
_CAP = "final_logit_softcapping"
"""Settings of transformers' configurations that change logits."""


class ModelTraits(NamedTuple):
    """The traits of a model, from a forward of a few tokens."""

    logit_rule: LogitRule | None
    """How the logits follow from the head applied to the body's output; None if neither scale nor cap explains them."""
    separates_examples: bool
    """Examples of a packed row do not attend to each other; true if none is packed."""
    kernel_fit: KernelFit = KernelFit(0, "its rows are not packed")
    """Whether a kernel that takes the boundaries of examples can compute the attention."""


@torch.no_grad()
def read_traits(model: Any, *, packed: bool) -> ModelTraits:
    """Compute the traits of a model in evaluation mode."""
    rule = _read_logit_rule(model)
    return ModelTraits(rule, *_separation(model)) if packed else ModelTraits(rule, separates_examples=True)


@torch.no_grad()
def read_traits_at_once(model: Any, *, packed: bool) -> ModelTraits:
    """Compute the same in a single forward, whose row has the same example twice, each with the positions from 0."""
    half = _PROBE_TOKENS // 2
    tokens = torch.arange(half).repeat(2)[None] % model.get_input_embeddings().num_embeddings
    positions = {"position_ids": torch.arange(half).repeat(2)[None]} if packed else {}
    hidden: list[torch.Tensor] = []
    handle = model.base_model.register_forward_hook(lambda module, inputs, output: hidden.append(output[0]))
    with probed_attention(model) if packed else contextlib.nullcontext() as probe:
        boundaries = _two_halves(probe) if probe else {}
        try:
            logits = model(input_ids=tokens, use_cache=False, **positions, **boundaries).logits
        finally:
            handle.remove()
    fit = probe.fit if probe else KernelFit(0, "its rows are not packed")
    head = model.get_output_embeddings()
    rule = None
    if head is not None and model.base_model is not model:
        if not hidden:  # The model calls only a part of its body.
            hidden.append(model.base_model(input_ids=tokens, use_cache=False, **positions)[0])
        rule = _logit_rule(model.config, head(hidden[0]), logits)
    return ModelTraits(rule, not packed or _equal(logits[:, half:], logits[:, :half]), fit)


def set_forward(model: Any, traits: ModelTraits) -> None:
    """Make the model, called with labels, return the loss summed over them, and set it to training mode.

    Raises:
        RefusedError: Examples are packed, and the model does not separate them.
    """
    if not traits.separates_examples:
        raise RefusedError(
            "data.packing: in this model the examples of a packed row attend to each other",
            "Set data.packing to false.",
        )
    model.kernel_fit, model.takes_boundaries = traits.kernel_fit, False
    model.take_boundaries = partial(_take_boundaries, model)
    own_forward = model.forward
    # The method is replaced instead of the module being wrapped, so that parameters keep their names in the folder.
    model.forward = partial(_forward, model, own_forward, traits.logit_rule)
    model.train()


def _take_boundaries(model: Any) -> None:
    use_kernel(model)
    model.takes_boundaries = True


def _forward(
    model: Any,
    own_forward: Callable[..., Any],
    rule: LogitRule | None,
    tokens: torch.Tensor,
    labels: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    terms: Terms = PLAIN,
    ends: torch.Tensor | None = None,
    last: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return logits (batch, length, vocabulary), or with `labels` (int64, (batch, length)) the loss that
    `terms` requests.

    `positions` (int64, (batch, length)) count from 0 in each example of a packed row; transformers then masks attention
    between examples, or the kernel takes their boundaries, from `ends` (see `boundaries_of`). With `rule` the logits
    are computed chunk by chunk from the body's hidden states. `last` (int64, (batch,)) are the positions whose logits
    alone are returned, (batch, vocabulary).
    """
    placed: dict[str, Any] = {} if positions is None else {"position_ids": positions}
    if model.takes_boundaries and ends is not None:
        placed |= boundary_arguments(boundaries_of(ends, tokens.shape[1]))
    if last is not None and rule is not None:
        hidden = at_positions(model.base_model(input_ids=tokens, use_cache=False, **placed)[0], last)
        return rule.after(model.get_output_embeddings())(hidden)
    if labels is None or rule is None:
        logits: torch.Tensor = own_forward(input_ids=tokens, use_cache=False, **placed).logits
        if last is not None:
            return at_positions(logits, last)
        return logits if labels is None else cross_entropy_of(logits, labels, terms)
    hidden = model.base_model(input_ids=tokens, use_cache=False, **placed)[0]
    head = model.get_output_embeddings()
    return head_loss(hidden, labels, head, head.weight.shape[0], head.parameters(), terms, rule)


def _read_logit_rule(model: Any) -> LogitRule | None:
    head = model.get_output_embeddings()
    if head is None or model.base_model is model:
        return None
    tokens = torch.arange(_PROBE_TOKENS)[None] % head.weight.shape[0]
    own = model(input_ids=tokens, use_cache=False).logits
    return _logit_rule(model.config, head(model.base_model(input_ids=tokens, use_cache=False)[0]), own)


def _logit_rule(config: Any, output: torch.Tensor, logits: torch.Tensor) -> LogitRule | None:
    """Return the rule by which the head's output becomes the logits. Those that the configuration names come first,
    since a cap does not change small logits."""
    config = config.get_text_config()
    named = [getattr(config, name, None) for name in _SCALES]
    divisor = getattr(config, _DIVISOR, None)
    # Some models divide by the setting of this name, others multiply.
    scales = [float(scale) for scale in (*named, divisor and 1 / divisor, divisor) if scale]
    caps = [cap for cap in (getattr(config, _CAP, None),) if cap]
    rules = (LogitRule(scale, cap) for scale in (*scales, 1.0) for cap in (*caps, None))
    return next((rule for rule in rules if _equal(rule.after(lambda x: x)(output), logits)), None)


def _separation(model: Any) -> tuple[bool, KernelFit]:
    """Return whether an example has the same logits alone and after another in its row, and whether a kernel fits its
    attention."""
    tokens = torch.arange(_PROBE_TOKENS)[None] % model.get_input_embeddings().num_embeddings
    half = _PROBE_TOKENS // 2
    positions = torch.arange(half).repeat(2)[None]
    with probed_attention(model) as probe:
        behind = model(input_ids=tokens, position_ids=positions, use_cache=False, **_two_halves(probe)).logits[:, half:]
    alone = model(input_ids=tokens[:, half:], position_ids=positions[:, half:], use_cache=False).logits
    return _equal(behind, alone), probe.fit


def _two_halves(probe: Probe) -> dict[str, Any]:
    """Return the boundaries of a row with two examples of the same length, if the model can be called with them."""
    ends = torch.tensor([[_PROBE_TOKENS // 2, _PROBE_TOKENS]], dtype=torch.int32)
    return {} if probe.obstacle else boundary_arguments(boundaries_of(ends, _PROBE_TOKENS))


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and bool(torch.allclose(first, second, rtol=1e-4, atol=1e-5))
