"""Operations of our own with one kernel each, registered with torch so that it counts, traces and fakes them.

Each has an implementation in plain torch, its reference, which runs where there is no kernel. A kernel in Triton is
imported when it is first used on CUDA. Before that it runs on a part of the values, and is used only if its results are
the results of the reference: a compiler or a device that nobody has tried must not change a training.
"""

import importlib
import importlib.util
import logging
import os
import shutil
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger(__name__)

_RELATIVE = {torch.bfloat16: 2**-7, torch.float16: 2**-9, torch.float32: 1e-4}
"""The difference of a result relative to the largest value, by its dtype. Integers are equal."""

# torch does not declare the types of this class.
_LIBRARY: Any = torch.library.Library("trainyard", "DEF")  # type: ignore[no-untyped-call]


def define_kernel(
    schema: str,
    reference: Callable[..., None],
    *,
    module: str | None = None,
    part: Callable[..., Sequence[Any]] = lambda *args: args,
) -> Callable[..., None]:
    """Return an operation that changes tensors in place and returns nothing.

    Args:
        schema: Its signature, such as `scale_(Tensor(a!) values, float factor) -> ()`.
        module: The module whose function `launch` runs the kernel on CUDA, with the arguments of `reference`.
        part: Returns arguments for a small part of the values, on which the kernel is compared with the reference. If
            the first has no values, the reference runs this time.
    """
    name = schema.split("(")[0]
    _LIBRARY.define(schema)
    kernel = CheckedKernel(name, reference, module, part)
    _LIBRARY.impl(name, reference, "CPU")
    _LIBRARY.impl(name, kernel if module else reference, "CUDA")
    _LIBRARY.impl(name, lambda *args: None, "Meta")
    operation: Callable[..., None] = getattr(torch.ops.trainyard, name).default
    return operation


def define_function(schema: str, implementation: Callable[..., torch.Tensor], meta: Callable[..., torch.Tensor]) -> Any:
    """Return an operation that torch counts, traces and stores as one, and returns a new tensor.

    Args:
        schema: Its signature.
        meta: Returns a tensor of the same shape and dtype, without values.
    """
    name = schema.split("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, implementation, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, meta, "Meta")
    return getattr(torch.ops.trainyard, name).default


class CheckedKernel:
    """A kernel that is compared with its reference at the first call for each combination of dtypes and options."""

    def __init__(
        self,
        name: str,
        reference: Callable[..., None],
        module: str | None,
        part: Callable[..., Sequence[Any]],
    ) -> None:
        self._name = name
        self._reference = reference
        self._module = module
        self._part = part
        self._chosen: dict[tuple[Any, ...], Callable[..., None]] = {}

    def __call__(self, *args: Any) -> None:
        key = tuple((arg.dtype, arg.device) if isinstance(arg, torch.Tensor) else _option(arg) for arg in args)
        if key not in self._chosen:
            part = self._part(*args)
            if not part[0].numel():
                # Nothing to compare; later values decide.
                self._reference(*args)
                return
            self._chosen[key] = self._choose(part)
        self._chosen[key](*args)

    def _choose(self, args: Sequence[Any]) -> Callable[..., None]:
        """Return the kernel if it agrees with the reference for these arguments, which stay unchanged."""
        launch = _launcher(self._module) if self._module else None
        if launch is None:
            return self._reference
        try:
            expected, actual = _results(self._reference, args), _results(launch, args)
            if all(map(_agree, expected, actual)):
                return launch
            reason = "plain torch has other results"
        except Exception as error:  # whatever a compiler raises
            reason = f"{type(error).__name__}: {error}"
        log.warning("the kernel of %s is not used, so that steps take longer: %s", self._name, reason)
        return self._reference


def _option(value: Any) -> Any:
    """Return what distinguishes compiled variants of a kernel: whether there is a value, and flags."""
    return value if value is None or isinstance(value, bool) else type(value)


def _results(function: Callable[..., None], args: Sequence[Any]) -> list[torch.Tensor]:
    copies = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    function(*copies)
    return [copy for copy in copies if isinstance(copy, torch.Tensor)]


def _agree(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    if not expected.is_floating_point():
        return torch.equal(expected, actual)
    largest = float(expected.float().nan_to_num(0.0, 0.0, 0.0).abs().max()) if expected.numel() else 0.0
    allowed = _RELATIVE[expected.dtype]
    return torch.allclose(actual.float(), expected.float(), rtol=allowed, atol=allowed * largest, equal_nan=True)


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
