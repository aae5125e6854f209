"""torch.compile, block by block: equal blocks share one compilation, and what surrounds them stays as it is."""

import os
import shutil

from torch import nn

from worker.core.errors import RefusedError
from worker.engine.strategies.units import layers

_COMPILERS = ("g++", "clang++", "c++")


def compile_blocks(model: nn.Module) -> None:
    """Compile each of the model's layers in place, or the model where it has none. Names stay as they are.

    Raises:
        RefusedError: this node has no C++ compiler, which torch's code generation needs.
    """
    wanted = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ((wanted,) if wanted else _COMPILERS)):
        raise RefusedError(
            f"compile needs a C++ compiler, and this node has none of {', '.join((wanted,) if wanted else _COMPILERS)}",
            "Install one on the nodes, or take `compile: false`.",
        )
    for block in [model.get_submodule(name) for name in layers(model)] or [model]:
        block.compile()
