"""Attention within the examples of packed rows."""

import torch


def packed_mask(positions: torch.Tensor) -> torch.Tensor:
    """Return the causal mask within each example: bool, (batch, 1, length, length).

    Args:
        positions: int64, (batch, length), counted from 0 in each example of a row.
    """
    example = (positions == 0).cumsum(dim=1)
    same = example[:, :, None] == example[:, None, :]
    return same.tril()[:, None]
