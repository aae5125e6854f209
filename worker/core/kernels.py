"""Operations of our own with one kernel each, registered with torch so that it counts, traces and fakes them.

Each has an implementation in plain torch, its reference, which runs where there is no kernel. A kernel in Triton is
imported when it is first used on CUDA.
"""

import importlib
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

# torch does not declare the types of this class.
_LIBRARY: Any = torch.library.Library("trainyard", "DEF")  # type: ignore[no-untyped-call]


def define_kernel(schema: str, reference: Callable[..., None], *, module: str | None = None) -> Callable[..., None]:
    """Return an operation that changes tensors in place and returns nothing.

    Args:
        schema: Its signature, such as `scale_(Tensor(a!) values, float factor) -> ()`.
        module: The module whose function `launch` runs the kernel on CUDA, with the arguments of `reference`.
    """
    name = schema.split("(")[0]
    _LIBRARY.define(schema)

    def on_cuda(*args: Any) -> None:
        launch = _launcher(module) if module else None
        (launch or reference)(*args)

    _LIBRARY.impl(name, reference, "CPU")
    _LIBRARY.impl(name, on_cuda, "CUDA")
    _LIBRARY.impl(name, lambda *args: None, "Meta")
    operation: Callable[..., None] = getattr(torch.ops.trainyard, name).default
    return operation


@cache
def has_triton() -> bool:
    """Return whether Triton can start kernels here. It compiles a part of itself, with Python's headers."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return importlib.util.find_spec("triton") is not None and bool(compiler) and headers


@cache
def _launcher(module: str) -> Callable[..., None] | None:
    """Return the function that starts the kernel of a module; None where Triton cannot."""
    if not has_triton():
        return None
    launch: Callable[..., None] = importlib.import_module(module).launch
    return launch
