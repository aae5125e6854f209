"""Attention within the examples of packed rows: with a dense mask, or by a kernel that takes their boundaries."""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch.nn import functional


class Boundaries(NamedTuple):
    """The starts of the examples of a batch of rows, if all rows form a single sequence of tokens."""

    offsets: torch.Tensor
    """int32, (examples + 1,): the first token of each example, and the end of the last. An example may be empty."""
    longest: int
    """No example has more tokens."""


class KernelFit(NamedTuple):
    """Whether `attend_by_kernel` can compute a model's attention."""

    head_width: int
    obstacle: str = ""
    """Why it cannot; empty if nothing in the model prevents it."""


class AttentionShape(NamedTuple):
    """The shapes of a model's attention, from which torch chooses a kernel."""

    heads: int
    shared_heads: int
    """Heads of keys and values."""
    head_width: int
    length: int
    """Tokens of a row."""
    dropout: float = 0.0


def packed_mask(positions: torch.Tensor) -> torch.Tensor:
    """Return the causal mask within each example: bool, (batch, 1, length, length).

    Args:
        positions: int64, (batch, length), counted from 0 in each example of a row.
    """
    example = (positions == 0).cumsum(dim=1)
    same = example[:, :, None] == example[:, None, :]
    return same.tril()[:, None]


def boundaries_of(ends: torch.Tensor, length: int) -> Boundaries:
    """Return the boundaries of a batch of rows with `length` tokens each.

    Args:
        ends: int32, (batch, examples), where each example of a row ends; the last value of a row is `length`. Rows with
            fewer examples repeat it, so that all batches have the same shape.
    """
    starts = torch.arange(len(ends), dtype=torch.int32, device=ends.device)[:, None] * length
    return Boundaries(functional.pad((starts + ends).flatten(), (1, 0)), length)


def separate(
    positions: torch.Tensor, ends: torch.Tensor | None, *, takes_boundaries: bool
) -> torch.Tensor | Boundaries:
    """Return the mask or boundaries that separate packed examples; see `packed_mask` and `boundaries_of`."""
    if not takes_boundaries:
        return packed_mask(positions)
    assert ends is not None, "packed rows come with the ends of their examples"
    return boundaries_of(ends, positions.shape[1])


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, within: torch.Tensor | Boundaries | None, dropout: float = 0.0
) -> torch.Tensor:
    """Return the attention of every query to the keys before it: (batch, heads, length, head width).

    Args:
        q: (batch, heads, length, head width); k and v may have fewer heads, each for a group of heads of `q`.
        within: A mask (bool, (batch, 1, length, length)) or boundaries of examples, if several share a row.
    """
    if isinstance(within, Boundaries):
        # Its import takes a second, since it loads torch's compiler: only runs that use the kernel pay for it.
        from worker.tasks.varlen_kernel import attend_by_kernel

        return attend_by_kernel(q, k, v, within)
    group = q.shape[1] // k.shape[1]
    if within is not None and group > 1:
        # Fused kernels that take a mask do not take groups.
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=within, is_causal=within is None, dropout_p=dropout, enable_gqa=within is None and group > 1
    )


def attend_by_loop(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    boundaries: Boundaries,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Return the same result as `attend_by_kernel`, example by example, on any device and in any dtype."""
    flat = [flat_heads(part) for part in (q, k, v)]
    mixed = torch.zeros_like(flat[0])
    for start, end in pairwise(boundaries.offsets.tolist()):
        index = torch.arange(end - start, device=q.device)
        distance = index[:, None] - index
        mask = (distance >= 0) & (distance < (window or len(index) + 1))
        queries, keys, values = (part[start:end].transpose(0, 1)[None] for part in flat)
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=True
        )
        mixed[start:end] = attended[0].transpose(0, 1)
    return in_rows(mixed, q)


def flat_heads(x: torch.Tensor) -> torch.Tensor:
    """Return (batch * length, heads, width) from (batch, heads, length, width)."""
    return x.transpose(1, 2).flatten(0, 1)


def in_rows(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the reverse, for the batch of `q`."""
    return x.view(q.shape[0], q.shape[2], *x.shape[1:]).transpose(1, 2)
