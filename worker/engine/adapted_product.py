"""The product of a linear layer and its adapter, as one operation, so that recomputation can store its result."""

import torch

from worker.core.kernels import define_function


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    inner: torch.Tensor,
    second: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    result = torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())
    return result.addmm_(inner, second.t(), alpha=scaling)


adapted_product = define_function(
    "adapted_product(Tensor x, Tensor weight, Tensor? bias, Tensor inner, Tensor second, float scaling) -> Tensor",
    _product,
    lambda x, weight, *others: x.new_empty(len(x), len(weight)),
)
"""Return x W^T + b + scaling (inner B^T): (tokens, out_features), all in the same dtype.

Args:
    x: (tokens, in_features).
    weight: W, (out_features, in_features).
    bias: b, (out_features,).
    inner: A x, (tokens, rank).
    second: B, (out_features, rank).
"""
