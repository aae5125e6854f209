"""Records how a model is initialised, without memory for its tensors.

While a recording is open, new tensors in host memory are created on the meta device, and every operation on them is
recorded instead of computed. Small tables that need no random numbers, such as `arange`, and tensors from data stay
real. `worker.deferred.replay` computes the recorded operations later, tensor by tensor.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from worker.core.errors import RefusedError
from worker.deferred.guards import RefusedReads, find_tensor, guard_generator
from worker.deferred.recording import (
    ALLOCATIONS,
    CannotDeferError,
    DeferredTensor,
    Operation,
    Recording,
    StorageKey,
    find_uninitialised,
)

_aten = torch.ops.aten

_FACTORIES = ALLOCATIONS | {
    _aten.zeros.default,
    _aten.ones.default,
    _aten.full.default,
    _aten.rand.default,
    _aten.randn.default,
    _aten.randint.default,
    _aten.randint.low,
    _aten.randperm.default,
    _aten.normal.float_float,
}
_OVERWRITING = frozenset(
    {
        _aten.normal_.default,
        _aten.uniform_.default,
        _aten.zero_.default,
        _aten.fill_.Scalar,
        _aten.fill_.Tensor,
        _aten.copy_.default,
        _aten.random_.default,
        _aten.random_.to,
        getattr(_aten.random_, "from"),
        _aten.bernoulli_.float,
        _aten.exponential_.default,
        _aten.log_normal_.default,
        _aten.cauchy_.default,
    }
)
"""Operations after which a tensor does not depend on its earlier values."""
_REPLACING = frozenset({"aten::set_", "aten::resize_"})
"""Operations that give a tensor another storage."""


def record(build: Callable[[], nn.Module], *, strict: bool = False) -> tuple[nn.Module, Recording]:
    """Call `build` and return its module, whose new tensors are deferred, and the recording.

    Args:
        build: Returns the module. It may change a module of an earlier recording, but not the earlier tensors.
        strict: The code is not ours: reading a tensor's device or values is refused too.

    Raises:
        CannotDeferError: `build` runs an operation that cannot be computed later with the same result.
    """
    recording = Recording(torch.get_rng_state())
    recorder = _Recorder(recording)
    reads = RefusedReads(recorder.refuse) if strict else contextlib.nullcontext()
    try:
        with guard_generator(recorder.refuse, recorder.add_seed), recorder, reads:
            module = build()
    except (CannotDeferError, RefusedError):
        raise
    except Exception as error:
        # The meta device may be the cause. Otherwise the caller builds the model without it and gets the same error.
        recorder.refuse(f"{type(error).__name__}: {error}")
    recorder.check()
    if not torch.equal(torch.get_rng_state(), recording.generator_state):
        raise CannotDeferError("random numbers drawn outside of the model's tensors")
    known = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    stray = find_tensor(lambda tensor: id(tensor) not in known and recording.describe(tensor) is not None)
    if stray is not None:
        # No later step would compute its values.
        raise CannotDeferError(f"a tensor of shape {list(stray.shape)} that is no parameter and no buffer")
    return module, recording


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Creates tensors on the meta device and records the operations on them."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording
        self._dtype = torch.get_default_dtype()
        self._refused: str | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch imports its compiler, which takes seconds.
        return False

    def refuse(self, reason: str) -> NoReturn:
        self._refused = self._refused or reason
        raise CannotDeferError(self._refused)

    def check(self) -> None:
        """Raise CannotDeferError if anything was refused, since the code may have caught the error."""
        if self._refused:
            raise CannotDeferError(self._refused)
        find_uninitialised(self._recording)

    def add_seed(self, function: Callable[[int], object], seed: int) -> None:
        """Record that the default generator is seeded."""
        self._recording.operations.append(Operation(function, (seed,), {}, (), None, frozenset()))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        if not any(tensor.is_meta for tensor in tensors):
            return self._without_deferred(func, tensors, args, kwargs)
        return self._with_deferred(func, tensors, args, kwargs)

    def _without_deferred(self, func: Any, tensors: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _FACTORIES and not tensors and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            self._check_generator(func, kwargs)
            output = func(*args, **{**kwargs, "device": "meta", "pin_memory": False})
            recorded = {**kwargs, "dtype": output.dtype}
            self._append(func, args, recorded, (self._recording.add(output),), [output])
            return output
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.refuse(f"{func} on a tensor with data")
        return func(*args, **kwargs)

    def _with_deferred(self, func: Any, tensors: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(tensor.is_meta and self._recording.describe(tensor) is None for tensor in tensors):
            self.refuse(f"{func} on a tensor of an earlier initialisation")
        if torch.get_default_dtype() != self._dtype:
            self.refuse(f"{func} under another default dtype")
        self._check_generator(func, kwargs)
        written = _written(func, args, kwargs)
        if func._schema.name in _REPLACING or any(tensor.is_conj() or tensor.is_neg() for tensor in tensors):
            self.refuse(str(func))
        if any(not tensor.is_meta for tensor in written):
            self.refuse(f"{func} that changes a tensor with data")
        recorded_args, recorded_kwargs = tree_map(self._recorded, (args, kwargs))
        try:
            result = func(*tree_map(_without_data, args), **tree_map(_without_data, kwargs))
        except Exception as error:
            self.refuse(f"{func}: {error}")
        outputs = tree_flatten(result)[0]
        if not outputs or not all(isinstance(output, torch.Tensor) and output.is_meta for output in outputs):
            self.refuse(f"{func}, whose result is no tensor of the model")
        created = [output for output in outputs if self._recording.describe(output) is None]
        if not created and not written:
            return result  # A view: its description is enough.
        descriptions = tuple(self._recording.add(output) for output in created)
        self._append(func, recorded_args, recorded_kwargs, descriptions, [*created, *written])
        return result

    def _recorded(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        # Record a copy, since the code may change its tensor later.
        return self._recording.describe(leaf) or leaf.detach().clone()

    def _append(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: tuple[DeferredTensor, ...],
        changed: list[torch.Tensor],
    ) -> None:
        overwrites = None
        if func in _OVERWRITING and _covers(args[0], self._recording.sizes):
            sources = {leaf.storage for leaf in tree_flatten(args[1:])[0] if isinstance(leaf, DeferredTensor)}
            overwrites = None if args[0].storage in sources else args[0].storage
        keys = frozenset(tensor.untyped_storage()._cdata for tensor in changed)
        self._recording.operations.append(Operation(func, args, kwargs, outputs, overwrites, keys))

    def _check_generator(self, func: Any, kwargs: dict[str, Any]) -> None:
        if kwargs.get("generator") is not None:
            self.refuse(f"{func} with its own generator")


def _without_data(leaf: Any) -> Any:
    return leaf.to("meta") if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" else leaf


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a function changes in place."""
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    changed = [
        named.get(argument.name)
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [leaf for leaf in tree_flatten(changed)[0] if isinstance(leaf, torch.Tensor)]


def _covers(tensor: DeferredTensor, sizes: dict[StorageKey, int]) -> bool:
    """Return whether a tensor is contiguous and the whole of its storage."""
    expected, contiguous = 1, True
    for size, stride in zip(reversed(tensor.size), reversed(tensor.stride), strict=True):
        contiguous = contiguous and (size == 1 or stride == expected)
        expected *= size
    return contiguous and expected * tensor.dtype.itemsize == sizes[tensor.storage]
