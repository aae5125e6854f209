"""The frozen base of a LoRA run, held in fewer bits than it computes in (QLoRA, arXiv:2305.14314).

Weights of linear layers and embeddings are held in `lora.base_dtype`, the others in fp32. Each layer computes with its
weight converted to the dtype of the forward pass, as if the base had been rounded before the training. The backward
converts it again instead of saving it.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.engine.quantisation import dequantise, quantise, row_bytes
from worker.tasks.linear_loss import LinearHead

HeldDtype = Literal["bf16", "int8", "nf4"]


def held_dtype(spec: TrainingSpec) -> HeldDtype | None:
    """Return how the run's frozen base is held; None for fp32, and for a run without adapters."""
    dtype = spec.lora.base_dtype
    return None if spec.lora_rank is None or dtype == "fp32" else dtype


class FrozenLinear(nn.Module):
    """A linear layer with a frozen weight, which is converted where it is used."""

    def __init__(self, linear: nn.Linear, weight: nn.Parameter, dtype: HeldDtype) -> None:
        """`weight`: in the form in which it is held."""
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.dtype = dtype
        self.weight = weight
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features) from `x` (..., in_features), in the dtype of `x` or of autocast."""
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        result: torch.Tensor = _Product.apply(x.to(dtype), self.weight, bias, self.in_features, self.dtype)  # type: ignore[no-untyped-call]
        return result

    def linear_head(self) -> LinearHead | None:
        """Return the weights for the loss of a head; see `worker.tasks.linear_loss`."""
        return LinearHead(self.weight, self.bias) if self.dtype == "bf16" else None

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.dtype}"


class _Product(torch.autograd.Function):
    """x W^T + b, with a gradient for x only."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, columns: int, dtype: HeldDtype
    ) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.columns, ctx.dtype = columns, dtype
        return functional.linear(x, converted(weight, columns, dtype, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return gradient @ converted(weight, ctx.columns, ctx.dtype, gradient.dtype), None, None, None, None


def converted(weight: torch.Tensor, columns: int, dtype: HeldDtype, result: torch.dtype) -> torch.Tensor:
    """Return a held weight as (rows, columns) in the dtype `result`."""
    return weight.to(result) if dtype == "bf16" else dequantise(weight.view(torch.uint8), columns, dtype, result)


def hold_base(model: nn.Module, dtype: HeldDtype, *, gathered_as: torch.dtype | None = None) -> None:
    """Convert the frozen weights of a model in place, layer by layer; on the meta device only their shapes and dtypes.

    Args:
        gathered_as: The dtype to which a sharded strategy converts parameters when it gathers them. Bytes of quantised
            weights are viewed as values of that dtype, which it does not convert; before torch 2.13 it takes no
            parameters of integers (pytorch#185239).

    Raises:
        RefusedError: Most frozen weights belong to other layers.
    """
    layers = held_layers(model, dtype)
    _check_share(model, layers)
    sharing: dict[int, list[str]] = {}
    for name in layers:
        sharing.setdefault(id(_weight(model, name)), []).append(name)
    for names in sharing.values():
        held = layers[names[0]]
        weight = nn.Parameter(_held(_weight(model, names[0]), held, gathered_as), requires_grad=False)
        for name in names:
            _replace(model, name, weight, held, gathers=gathered_as is not None)


def _replace(model: nn.Module, name: str, weight: nn.Parameter, dtype: HeldDtype, *, gathers: bool) -> None:
    """Give a layer its held weight, and make it convert the weight unless the strategy does."""
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear | nn.Embedding)
    layer.weight = weight
    if gathers and dtype == "bf16":
        return
    if isinstance(layer, nn.Embedding):
        # As without `base_dtype`: activations between the layers stay in fp32.
        layer.register_forward_hook(_to_fp32)
    else:
        model.set_submodule(name, FrozenLinear(layer, weight, dtype))


def _to_fp32(layer: nn.Module, inputs: Any, rows: torch.Tensor) -> torch.Tensor:
    return rows.float()


@torch.no_grad()
def round_base(model: nn.Module, dtype: HeldDtype) -> None:
    """Give a whole base model in fp32 the values with which its adapters are trained."""
    model.requires_grad_(False)
    for name, held in held_layers(model, dtype).items():
        weight = _weight(model, name)
        weight.copy_(converted(_held(weight, held), weight.shape[1], held, torch.float32))


def held_layers(model: nn.Module, dtype: HeldDtype) -> dict[str, HeldDtype]:
    """Return the frozen linear layers and embeddings, by name, and how their weights are held.

    The weights of the output layer, of embeddings, and weights that several layers share are not quantised.
    """
    output = _output_layer(model)
    inner = set() if output is None else {id(module) for module in output.modules()}
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    held: dict[str, HeldDtype] = {}
    for name, layer in model.named_modules():
        # A subclass may use its weight otherwise.
        if type(layer) not in (nn.Linear, nn.Embedding):
            continue
        weight = _weight(model, name)
        if weight.requires_grad:
            continue
        whole = isinstance(layer, nn.Embedding) or id(layer) in inner or owners[id(weight)] > 1
        held[name] = "bf16" if whole else dtype
    return held


def encoder_of(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return the function that quantises rows of the module's weight; None if it only changes their dtype."""
    if not isinstance(module, FrozenLinear) or module.dtype == "bf16":
        return None
    dtype, stored = module.dtype, module.weight.dtype
    return lambda rows: quantise(rows, dtype).view(stored)


def _output_layer(model: nn.Module) -> nn.Module | None:
    get: Callable[[], Any] | None = getattr(model, "get_output_embeddings", None)
    module = get() if get else None
    return module if isinstance(module, nn.Module) else None


def _weight(model: nn.Module, layer: str) -> nn.Parameter:
    weight = model.get_submodule(layer).weight
    assert isinstance(weight, nn.Parameter)
    return weight


def _held(weight: torch.Tensor, dtype: HeldDtype, gathered_as: torch.dtype | None = None) -> torch.Tensor:
    if dtype == "bf16":
        return weight.detach().to(torch.bfloat16)
    if weight.is_meta:
        held = torch.empty(len(weight), row_bytes(weight.shape[1], dtype), dtype=torch.uint8, device="meta")
    else:
        held = quantise(weight, dtype)
    return held if gathered_as is None else held.view(gathered_as)


def _check_share(model: nn.Module, layers: dict[str, HeldDtype]) -> None:
    frozen = {id(parameter): parameter.numel() for parameter in model.parameters() if not parameter.requires_grad}
    covered = {id(_weight(model, name)) for name in layers}
    if 2 * sum(size for key, size in frozen.items() if key in covered) < sum(frozen.values()):
        raise RefusedError(
            "lora.base_dtype: most weights of this model are in layers other than torch's linear layers and embeddings",
            "Remove lora.base_dtype.",
        )
