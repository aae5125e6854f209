"""FlashAttention's kernel for sequences of several lengths on the CPU, by its contract: a loop over the sequences."""

from itertools import pairwise
from typing import Any

import torch
from torch.nn.attention import varlen

calls: list[str] = []
"""The kernels that were called."""


def _scores(
    q: torch.Tensor, k: torch.Tensor, scale: float | None, window: list[int] | None, causal: bool
) -> torch.Tensor:
    """Return the scores of one sequence: (heads, queries, keys)."""
    assert window is not None
    assert window[1] == 0
    assert causal == (window[0] == -1), "a causal kernel has no window"
    index = torch.arange(len(q))
    distance = index[:, None] - index
    visible = (distance >= 0) & (distance <= (window[0] if window[0] >= 0 else len(q)))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * (scale or q.shape[-1] ** -0.5)
    return scores.masked_fill(~visible, float("-inf"))


def _sequences(offsets: torch.Tensor, longest: int, tokens: int) -> list[tuple[int, int]]:
    assert offsets.dtype == torch.int32
    positions = offsets.tolist()
    assert positions[0] == 0
    assert positions[-1] == tokens, "the result has no value outside of all sequences"
    pairs = list(pairwise(positions))
    assert all(0 <= end - start <= longest for start, end in pairs)
    return pairs


def _check(*tensors: torch.Tensor) -> None:
    assert all(tensor.dtype in (torch.float16, torch.bfloat16, torch.float32) for tensor in tensors)
    assert len({tensor.dtype for tensor in tensors}) == 1
    assert all(tensor.stride(-1) == 1 for tensor in tensors)


@varlen._varlen_attn.register_kernel("cpu")  # type: ignore[untyped-decorator, unused-ignore]
def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    key_offsets: torch.Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    enable_gqa: bool = False,
    *unused: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    calls.append("forward")
    _check(q, k, v)
    out = torch.full_like(q, float("nan"))
    logsumexp = torch.zeros(q.shape[1], len(q))
    group = q.shape[1] // k.shape[1]
    for start, end in _sequences(offsets, max_q, len(q)):
        keys, values = (x[start:end].repeat_interleave(group, dim=1) for x in (k, v))
        scores = _scores(q[start:end], keys, scale, window_size, is_causal)
        out[start:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values.float()).to(q.dtype)
        logsumexp[:, start:end] = scores.logsumexp(-1)
    return out, logsumexp, torch.zeros(2, dtype=torch.uint64)


@varlen._varlen_attn_backward.register_kernel("cpu")  # type: ignore[untyped-decorator, unused-ignore]
def _backward(
    grad_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    offsets: torch.Tensor,
    key_offsets: torch.Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: torch.Tensor,
    scale: float | None = None,
    window_size: list[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    calls.append("backward")
    gradients = [torch.zeros_like(x) for x in (q, k, v)]
    group, factor = q.shape[1] // k.shape[1], scale or q.shape[-1] ** -0.5
    for start, end in _sequences(offsets, max_q, len(q)):
        queries, of_out, result = (x[start:end].float() for x in (q, grad_out, out))
        keys, values = (x[start:end].repeat_interleave(group, dim=1).float() for x in (k, v))
        weights = (_scores(queries, keys, scale, window_size, is_causal) - logsumexp[:, start:end, None]).exp()
        of_weights = torch.einsum("qhd,khd->hqk", of_out, values)
        of_scores = weights * (of_weights - (of_out * result).sum(-1).T[:, :, None]) * factor
        parts = (
            torch.einsum("hqk,khd->qhd", of_scores, keys),
            torch.einsum("hqk,qhd->khd", of_scores, queries).reshape(end - start, k.shape[1], group, q.shape[2]).sum(2),
            torch.einsum("hqk,qhd->khd", weights, of_out).reshape(end - start, k.shape[1], group, q.shape[2]).sum(2),
        )
        for gradient, part in zip(gradients, parts, strict=True):
            gradient[start:end] = part.to(gradient.dtype)
    return gradients[0], gradients[1], gradients[2]
