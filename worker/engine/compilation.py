"""torch.compile for each layer: equal layers share one compilation, and the code around them is not compiled."""

import os
import shutil

import torch
from torch import nn

from worker.core.errors import RefusedError
from worker.engine.compile_cache import use_compile_cache
from worker.engine.strategies.units import layers

_COMPILERS = ("g++", "clang++", "c++")


def compile_blocks(model: nn.Module, *, only_forward: bool = False) -> None:
    """Compile each layer in place, or the model if it has none. Parameter names do not change.

    Args:
        only_forward: Compile the present `forward` of each, so that a function that replaces it later is not compiled.

    Raises:
        RefusedError: This node has no C++ compiler, which torch's code generation needs.
    """
    configured = os.environ.get("CXX")
    compilers = (configured,) if configured else _COMPILERS
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        raise RefusedError(
            f"compile needs a C++ compiler, and this node has none of {', '.join(compilers)}",
            "Install one on the nodes, or set `compile: false`.",
        )
    use_compile_cache(compiler)
    for block in [model.get_submodule(name) for name in layers(model)] or [model]:
        if only_forward:
            block.forward = torch.compile(block.forward)
        else:
            block.compile()
