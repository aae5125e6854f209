"""Attention within the examples of packed rows by FlashAttention's kernel for sequences of several lengths."""

from inspect import signature
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn

from worker.tasks.packing import Boundaries, flat_heads, in_rows

_TAKES_GROUPS = "enable_gqa" in signature(varlen_attn).parameters
"""Whether torch's kernel takes keys and values with fewer heads; torch 2.11's does not."""


def attend_by_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    boundaries: Boundaries,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Return the same result as `attend` with boundaries, in bf16 or fp16.

    The kernel leaves early where an example is empty, and its result has no value outside of all examples.

    Args:
        window: A query attends to that many keys, its own included; None: to all before it.
    """
    # Autocast does not know the kernel, and rotations leave queries and keys in fp32.
    autocast = torch.is_autocast_enabled(q.device.type)
    dtype = torch.get_autocast_dtype(q.device.type) if autocast else v.dtype
    group = q.shape[1] // k.shape[1]
    if group > 1 and not _TAKES_GROUPS:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    queries, keys, values = (flat_heads(part).to(dtype).contiguous() for part in (q, k, v))
    offsets, longest = boundaries
    groups: dict[str, Any] = {"enable_gqa": k.shape != q.shape} if _TAKES_GROUPS else {}
    mixed = varlen_attn(
        queries,
        keys,
        values,
        offsets,
        offsets,
        longest,
        longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        **groups,
    )
    assert isinstance(mixed, torch.Tensor)
    return in_rows(mixed, q)
