"""Attention of Hugging Face models that takes the boundaries of packed examples, registered with transformers."""

import contextlib
from collections.abc import Iterator
from inspect import Parameter, signature
from typing import Any

import torch

from worker.tasks.packing import Boundaries, KernelFit, attend_by_loop

_KERNEL = "trainyard_kernel"
_PROBE = "trainyard_probe"
_EXTRAS = ("softcap", "s_aux", "position_bias")
"""Options that layers pass to their attention, and that the kernel cannot compute."""


def boundary_arguments(boundaries: Boundaries) -> dict[str, Any]:
    """Return the arguments by which transformers passes boundaries to flash attention."""
    offsets, longest = boundaries
    return {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}


def use_kernel(model: Any) -> None:
    """Make every attention of the model use `attend_by_kernel`."""
    from transformers import AttentionInterface

    # Without a mask function of this name, transformers makes no masks.
    AttentionInterface.register(_KERNEL, _attend)
    model.set_attn_implementation(_KERNEL)


@contextlib.contextmanager
def probed_attention(model: Any) -> Iterator["Probe"]:
    """While this is open, compare each attention of the model, called with a mask and boundaries, with the kernel's."""
    probe = Probe(model)
    if probe.obstacle:
        yield probe
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(_PROBE, probe)
    AttentionMaskInterface.register(_PROBE, sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(_PROBE)
    try:
        yield probe
    finally:
        model.set_attn_implementation(before)


class Probe:
    """An attention that computes the result of transformers, and compares it with the loop over examples."""

    def __init__(self, model: Any) -> None:
        self._config = model.config.get_text_config()
        self._calls = 0
        self._head_width = 0
        self.obstacle = _obstacle_before(model)

    @property
    def fit(self) -> KernelFit:
        """The result, after a forward."""
        layers = getattr(self._config, "num_hidden_layers", None)
        if not self.obstacle and self._calls != layers:
            return KernelFit(self._head_width, f"{self._calls} of its {layers} layers use transformers' attention")
        return KernelFit(self._head_width, self.obstacle)

    def __call__(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
    ) -> tuple[torch.Tensor, None]:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        mixed, _ = sdpa_attention_forward(module, query, key, value, mask, **options)
        self._calls += 1
        self._head_width = max(self._head_width, query.shape[-1])
        self.obstacle = self.obstacle or _obstacle_of(module, query, key, value, options, mixed)
        return mixed, None


def _obstacle_before(model: Any) -> str:
    """Return why the kernel cannot replace the model's attention, as far as its class and configuration show it."""
    config = model.config.get_text_config()
    if model.config._attn_implementation != "sdpa" or not getattr(model, "_supports_flash_attn", False):
        return "transformers computes it without flash attention"
    if not model._can_set_attn_implementation():
        return "its attention cannot be replaced"
    for forward in (model.forward, model.base_model.forward):
        if all(parameter.kind != Parameter.VAR_KEYWORD for parameter in signature(forward).parameters.values()):
            return "its forward takes no boundaries"
    for name, value in config.to_dict().items():
        if "drop" in name and ("attn" in name or "attention" in name) and value:
            return f"it has dropout in its attention (`{name}`)"
    return ""


def _obstacle_of(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any], mixed: Any
) -> str:
    """Return why the kernel cannot compute an attention, whose result is `mixed` (batch, length, heads, width)."""
    if used := [name for name in _EXTRAS if options.get(name) is not None]:
        return f"its attention has `{used[0]}`"
    if key.shape != value.shape or query.shape[-1] != key.shape[-1]:
        return "its keys and values differ in width"
    boundaries = _boundaries(options)
    if boundaries is None:
        return "its layers do not pass boundaries to their attention"
    by_loop = attend_by_loop(query, key, value, boundaries, **_settings(options)).transpose(1, 2)
    if not torch.allclose(by_loop, mixed, rtol=1e-4, atol=1e-5):
        return f"{type(module).__name__} is not causal attention within examples"
    return ""


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    rows, length = query.shape[0], query.shape[2]
    boundaries = _boundaries(options)
    if boundaries is None:
        offsets = torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=query.device)
        boundaries = Boundaries(offsets, length)
    # The import is not at the top: see `attend`.
    from worker.tasks.varlen_kernel import attend_by_kernel

    return attend_by_kernel(query, key, value, boundaries, **_settings(options)).transpose(1, 2), None


def _boundaries(options: dict[str, Any]) -> Boundaries | None:
    offsets = options.get("cu_seq_lens_q")
    return None if offsets is None else Boundaries(offsets, options["max_length_q"])


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    return {"scale": options.get("scaling"), "window": options.get("sliding_window")}
