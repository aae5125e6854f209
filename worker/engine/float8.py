"""`precision: fp8`: linear layers whose matrix products compute in 8 bits, with a scale for each tensor (torchao).

Weights, gradients and optimizer state stay in fp32, and parameters keep their names. Each product casts its operands
to 8 bits as it computes: e4m3 for inputs and weights, e5m2 for gradients (arXiv:2209.05433).
"""

from collections import Counter
from typing import Any

import torch
from torch import nn

from worker.core.errors import RefusedError
from worker.engine.parameter_groups import output_parameters

MULTIPLE = 16
"""The kernels require that the sizes of a layer are multiples of this."""
SMALL_INPUTS, SMALL_OUTPUTS = 4096, 1024
"""Products of layers up to these sizes are slower in 8 bits on an H100, by torchao's measurements (its
`_auto_filter_for_tensorwise`)."""
CAPABILITY = (8, 9)
"""The lowest compute capability with 8-bit floating point products."""


def convert_linear_layers(model: nn.Module, device: torch.device) -> None:
    """Make the trained linear layers compute in 8 bits, in place. On a CPU they emulate it in fp32.

    The output layer, layers that share their weight, small layers, and layers whose sizes are no multiples of 16 do not
    change.

    Raises:
        RefusedError: The GPU has no 8-bit products, the model has no layer for them, or torchao is not installed.
    """
    _check_device(device)
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        hint = "Install what `pip install 'trainyard[fp8]'` does where the workers run, or use precision `bf16`."
        raise RefusedError(f"precision `fp8` needs torchao, which cannot be imported: {error}", hint) from None
    chosen = float8_layers(model)
    if not chosen:
        raise RefusedError(
            "precision `fp8` is for linear layers whose sizes are multiples of 16, and this model trains none of "
            "them beside its output layer",
            "Use precision `bf16`.",
        )
    emulate = device.type == "cpu"
    # Padded, since the number of tokens, an inner size of the weight's gradient, is often no multiple of 16.
    config = Float8LinearConfig(emulate=emulate, pad_inner_dim=True)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name in chosen)
    if emulate:
        for name in chosen:
            model.get_submodule(name).register_forward_pre_hook(_cast_input)


def float8_layers(model: nn.Module) -> frozenset[str]:
    """Return the names of the layers to convert; small layers only where the model has no others."""
    layers = _convertible_layers(model)
    large = frozenset(name for name, layer in layers.items() if not _is_small(layer))
    return large or frozenset(layers)


def _is_small(layer: nn.Linear) -> bool:
    """Return whether casts cost more than the quicker product saves, such as those of grouped keys and values."""
    return layer.in_features <= SMALL_INPUTS and layer.out_features <= SMALL_OUTPUTS


def _convertible_layers(model: nn.Module) -> dict[str, nn.Linear]:
    others = {id(parameter) for parameter in output_parameters(model)} | _shared(model)
    return {
        name: layer
        for name, layer in model.named_modules()
        # Not subclasses: their code may read the weight itself.
        if name and type(layer) is nn.Linear and layer.weight.requires_grad and id(layer.weight) not in others
        if layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0
    }


def _shared(model: nn.Module) -> set[int]:
    counts = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    return {key for key, count in counts.items() if count > 1}


def _check_device(device: torch.device) -> None:
    if device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY:
        raise RefusedError(
            f"precision `fp8` needs GPUs of compute capability 8.9 or higher (Ada, Hopper, Blackwell), and "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}",
            "Use precision `bf16`, or request another type with resources.gpu_type.",
        )


def _cast_input(layer: nn.Module, inputs: tuple[Any, ...]) -> torch.Tensor:
    # torchao does this on GPUs alone.
    values: torch.Tensor = inputs[0]
    return values.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else values
