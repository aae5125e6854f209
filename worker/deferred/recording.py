"""Records how a model is initialised, without memory for its tensors.

While a recording is open, new tensors in host memory are created on the meta device, and every operation on them is
recorded instead of computed. Small tables that need no random numbers, such as `arange`, and tensors from data stay
real. `worker.deferred.replay` computes the recorded operations later, one tensor after the other.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from worker.core.errors import RefusedError

_aten = torch.ops.aten

StorageKey: TypeAlias = int
"""Identifies the storage of a deferred tensor; views share it."""

ALLOCATIONS = frozenset({_aten.empty.memory_format, _aten.empty_strided.default})
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
"""Operations after which a tensor does not depend on its values before."""
_REPLACING = frozenset({"aten::set_", "aten::resize_"})
"""Operations that give a tensor another storage."""
_DEVICE_READS = frozenset(
    {
        torch.Tensor.device.__get__,
        torch.Tensor.is_cpu.__get__,  # type: ignore[attr-defined]
        torch.Tensor.is_cuda.__get__,  # type: ignore[attr-defined]
        torch.Tensor.is_meta.__get__,  # type: ignore[attr-defined]
        torch.Tensor.get_device,
        torch.Tensor.data_ptr,
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.item,
        torch.Tensor.storage,
        torch.Tensor.untyped_storage,
        torch.Tensor.type,
        torch.Tensor.__array__,
        torch.Tensor.__repr__,
    }
)
"""Functions whose result differs for a tensor without memory."""


class CannotDeferError(Exception):
    """The initialisation contains something whose result could differ if it was computed later."""


@dataclass(frozen=True)
class DeferredTensor:
    """A tensor of a recording: a view of a storage."""

    storage: StorageKey
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Elements before its first one in the storage."""


@dataclass(frozen=True)
class Operation:
    """One recorded call. Deferred tensors in its arguments are `DeferredTensor`s."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[DeferredTensor, ...]
    """New tensors; empty for an operation in place."""
    overwrites: StorageKey | None
    """The storage whose values before do not matter."""

    changed: frozenset[StorageKey]
    """The storages that it changes or creates."""

    @property
    def storages(self) -> set[StorageKey]:
        """The storages that it reads, changes or creates."""
        inputs = (leaf for leaf in tree_flatten((self.args, self.kwargs))[0] if isinstance(leaf, DeferredTensor))
        return {tensor.storage for tensor in (*inputs, *self.outputs)}

    @property
    def draws(self) -> bool:
        """Whether it advances or seeds torch's default generator."""
        return torch.Tag.nondeterministic_seeded in getattr(self.function, "tags", (torch.Tag.nondeterministic_seeded,))


@dataclass
class Recording:
    """The operations that initialise a module, in order."""

    generator_state: torch.Tensor
    """The state of torch's default generator before the first operation."""
    operations: list[Operation] = field(default_factory=list)
    sizes: dict[StorageKey, int] = field(default_factory=dict)
    """Bytes of each storage."""
    _storages: list[torch.UntypedStorage] = field(default_factory=list)
    """Held, so that no key is used twice."""

    def describe(self, tensor: torch.Tensor) -> DeferredTensor | None:
        """Return what a tensor on the meta device stands for; None if the recording does not know it."""
        if not tensor.is_meta:
            return None
        key = tensor.untyped_storage()._cdata
        if key not in self.sizes:
            return None
        return DeferredTensor(key, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def add(self, tensor: torch.Tensor) -> DeferredTensor:
        storage = tensor.untyped_storage()
        self._storages.append(storage)
        self.sizes[storage._cdata] = storage.nbytes()
        described = self.describe(tensor)
        assert described is not None
        return described


def record(build: Callable[[], nn.Module], *, strict: bool = False) -> tuple[nn.Module, Recording]:
    """Call `build` and return its module, whose new tensors are deferred, and the recording.

    Args:
        build: Returns the module. It may change a module of an earlier recording, but not the tensors of that one.
        strict: The code is not ours: reading a tensor's device or values is refused too.

    Raises:
        CannotDeferError: `build` does what cannot be computed later with the same result.
    """
    recording = Recording(torch.get_rng_state())
    recorder = _Recorder(recording)
    try:
        with _guard_generator(recorder), recorder, _Reads(recorder) if strict else contextlib.nullcontext():
            module = build()
    except (CannotDeferError, RefusedError):
        raise
    except Exception as error:
        # It may be the meta device that failed. If not, the same error follows without it.
        recorder.refuse(f"{type(error).__name__}: {error}")
    recorder.check()
    if not torch.equal(torch.get_rng_state(), recording.generator_state):
        raise CannotDeferError("random numbers drawn outside of the model's tensors")
    _check_strays(module, recording)
    return module, recording


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Creates tensors on the meta device and records what happens to them."""

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
        # A copy, since the code may change its tensor later.
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


class _Reads(TorchFunctionMode):
    """Refuses functions whose result differs on the meta device."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _DEVICE_READS and args and args[0].is_meta:
            # The name of a property's getter is that of its descriptor.
            name = getattr(func, "__self__", func).__name__
            self._recorder.refuse(f"`{name}` of a tensor")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _guard_generator(recorder: _Recorder) -> Iterator[None]:
    """Record that torch's default generator is seeded, and refuse to save, restore or advance it."""
    original = torch.default_generator

    class Guard:
        def manual_seed(self, seed: int) -> None:
            recorder.add_seed(original.manual_seed, seed)

        def __getattr__(self, name: str) -> Callable[..., None]:
            # Only a call is refused: modules that are imported meanwhile may look at the methods.
            return lambda *args: recorder.refuse(f"`{name}` of torch's default generator")

    owners: tuple[Any, ...] = (torch, torch.random)
    for owner in owners:
        owner.default_generator = Guard()
    try:
        yield
    finally:
        for owner in owners:
            owner.default_generator = original


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


def find_uninitialised(recording: Recording) -> set[StorageKey]:
    """Return the storages to which nothing is written.

    Raises:
        CannotDeferError: One is used before all of it is written, so that its values are arbitrary.
    """
    empty: set[StorageKey] = set()
    for operation in recording.operations:
        if operation.overwrites is not None:
            empty.discard(operation.overwrites)
        if operation.function in ALLOCATIONS:
            empty |= operation.storages
        elif used := empty & operation.storages:
            raise CannotDeferError(f"{operation.function} on {recording.sizes[used.pop()]} bytes without values")
    return empty


def _check_strays(module: nn.Module, recording: Recording) -> None:
    """Raise CannotDeferError if a deferred tensor is anything but a parameter or buffer of the module: nothing would
    replace it."""
    if _stray(module, recording) is not None:
        # It may be garbage.
        gc.collect()
        if (stray := _stray(module, recording)) is not None:
            raise CannotDeferError(f"a tensor of shape {list(stray.shape)} that is no parameter and no buffer")


def _stray(module: nn.Module, recording: Recording) -> torch.Tensor | None:
    known = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    return next(
        (
            tracked
            for tracked in gc.get_objects()
            if issubclass(type(tracked), torch.Tensor) and id(tracked) not in known and recording.describe(tracked)
        ),
        None,
    )
