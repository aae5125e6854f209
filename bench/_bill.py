"""Counts the bytes that kernels move and the launches, without a device: every operation is one kernel.

Each operation reads its inputs and writes its results once; some pass over an input more often. Of matrix products
only the FLOPs are counted, and the sum to which a product is added. Attention is not counted.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRODUCTS = frozenset(
    {"mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_", "_scaled_mm", "_int_mm", "add_product_", "adapted_product"}
)
LAUNCHES = {"adapted_product": 2}
"""Kernels of operations with several."""
FREE = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "lift_fresh"),
        *("_unsafe_view", "is_same_size", "record_stream", "device", "requires_grad_"),
    }
)
SYNCHRONISING = frozenset(
    {
        *("_local_scalar_dense", "nonzero", "masked_select", "item", "equal", "bincount", "repeat_interleave"),
        *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
    }
)
"""Operations whose result or its size must be read from the device."""
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
"""Operations that must know the number of true values, where a mask selects what they read or write."""
WRITE_ONLY = frozenset({"copy_", "fill_", "zero_", "dequantise_", "_foreach_copy_", "_foreach_zero_"})
"""Operations that do not read what they change."""
CREATING = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_full", "new_ones"})
"""Operations that read no values."""
SELECTING = frozenset({"embedding", "index_select", "gather", "index"})
"""Operations that read as many values of their first input as they return."""
MORE_PASSES = {
    # torch's softmax over rows longer than the shared memory finds the largest value, then the sum, then writes.
    "_log_softmax": 2,
    "_softmax": 2,
    "_log_softmax_backward_data": 1,
    # The differences and their exponentials are written and read again.
    "logsumexp": 4,
    # One pass for the normalizer, one for the gradient.
    "cross_entropy_": 1,
}
"""Further passes over the first input."""


@dataclass
class Count:
    """What the kernels of a phase do."""

    bytes: int = 0
    """Read and written outside of products."""
    launches: int = 0
    """Kernels, products included."""
    flops: int = 0
    """Of matrix products."""
    synchronisations: int = 0
    """Operations that wait for the device."""


class Bill(TorchDispatchMode):
    """Counts operations by phase while it is entered."""

    def __init__(self, on_host: Iterable[torch.Tensor] = ()) -> None:
        """`on_host`: Tensors that are never on the device, and may be read."""
        super().__init__()
        self._on_host = {id(tensor) for tensor in on_host}
        self.phases: dict[str, Count] = defaultdict(Count)
        self._phase = "other"
        self._casts: frozenset[tuple[int, ...]] = frozenset()

    @contextmanager
    def phase(self, name: str, *, weights: frozenset[tuple[int, ...]] = frozenset()) -> Iterator[None]:
        """Count what runs inside under a name; conversions of tensors with a shape of `weights` under `casts`."""
        before = self._phase, self._casts
        self._phase, self._casts = name, weights
        try:
            yield
        finally:
            self._phase, self._casts = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        if _waits(name, args, kwargs or {}) and id(args[0]) not in self._on_host:
            # Before it runs, because tensors without values cannot be read.
            self.phases[self._phase].synchronisations += 1
        result = func(*args, **(kwargs or {}))
        if func.is_view or name in FREE:
            return result
        count = self.phases[self._phase_of(name, args)]
        count.launches += LAUNCHES.get(name, 1)
        if name in PRODUCTS:
            count.flops += _product_flops(name, args)
        count.bytes += _moved_bytes(func, name, args, kwargs or {}, result)
        return result

    def _phase_of(self, name: str, args: Any) -> str:
        if name == "_to_copy" and tuple(args[0].shape) in self._casts:
            # The gradient of the head in fp32 is counted with the head.
            return "casts" if args[0].dtype == torch.float32 or self._phase == "block" else self._phase
        return self._phase


@contextmanager
def counting() -> Iterator[Bill]:
    """Let tensors have shapes but no values, and count."""
    with FakeTensorMode(allow_non_fake_inputs=True), Bill() as bill:
        yield bill


def _moved_bytes(func: Any, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> int:
    if "attention" in name:
        return 0
    written, given = _written(func._schema, args, kwargs), _tensors((args, list(kwargs.values())))
    if name in PRODUCTS:
        # The operands and a new result are the product's own.
        product = (written or [result])[0]
        return 2 * _bytes(product) if _adds(name, args, product) else 0
    results = written or _tensors(result)
    if name.startswith("_fused_adam"):
        # Its schema calls gradients changed, which they are only with a loss scale.
        parameters, _, *moments = (args[index] for index in range(4))
        results = [*parameters, *_tensors(moments)]
    if name.startswith("nll_loss"):
        return sum(map(_bytes, results))
    if name in SELECTING:
        return 2 * sum(map(_bytes, results)) + sum(map(_bytes, given[1:]))
    if name.startswith(("scatter", "index_add")):
        return 3 * _bytes(args[3] if len(args) > 3 and isinstance(args[3], torch.Tensor) else args[2])
    outputs = {id(value) for value in _tensors(list(kwargs.values()))} & {id(value) for value in written}
    read = [value for value in given if id(value) not in outputs]
    if name in WRITE_ONLY:
        changed = {id(value) for value in written}
        read = [value for value in read if id(value) not in changed]
    if name in CREATING:
        read = []
    passes = MORE_PASSES.get(name, 0) * _bytes(given[0]) if given else 0
    return sum(map(_bytes, read)) + sum(map(_bytes, results)) + passes


def _waits(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether an operation waits for the device."""
    if name in INDEXING:
        # One value is written where the mask is true, without a list of these places.
        fills = name != "index" and args[2].numel() == 1
        return not fills and any(index is not None and index.dtype == torch.bool for index in args[1])
    return name in SYNCHRONISING and kwargs.get("output_size") is None


def _adds(name: str, args: Any, product: torch.Tensor) -> bool:
    """Return whether a product is added to a sum, and not only a vector to each of its rows."""
    if name == "add_product_":
        return bool(args[3])
    return name == "adapted_product" or ("add" in name and args[0].numel() == product.numel())


def _product_flops(name: str, args: Any) -> int:
    if name == "adapted_product":
        x, weight, _, inner, second, _ = args
        return int(2 * x.numel() * len(weight) + 2 * inner.numel() * len(second))
    # What a product is added to comes first.
    left, right = args[1:3] if "add" in name else args[:2]
    return int(2 * left.numel() * right.shape[-1])


def _written(schema: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operation changes."""
    changed = []
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            changed.append(args[index] if index < len(args) else kwargs.get(argument.name))
    return _tensors(changed)


def _tensors(values: Any) -> list[torch.Tensor]:
    unique = {id(leaf): leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}
    return list(unique.values())


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the values of a tensor, repeated ones once."""
    count = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= 1 if stride == 0 and size else size
    return count
