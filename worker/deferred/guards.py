"""Guards while tensors are deferred: code must not read them, move torch's generator, or store them elsewhere."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

Refuse: TypeAlias = Callable[[str], NoReturn]

_READS = frozenset(
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
        torch.Tensor.__reduce_ex__,
        torch.Tensor.__repr__,
    }
)
"""Functions whose result differs for a tensor without memory."""


class RefusedReads(TorchFunctionMode):
    """Refuses functions whose result differs on the meta device."""

    def __init__(self, refuse: Refuse) -> None:
        super().__init__()
        self._refuse = refuse

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _READS and args and args[0].is_meta:
            # For a property's getter, the descriptor has the name.
            self._refuse(f"`{getattr(func, '__self__', func).__name__}` of a tensor")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def guard_generator(refuse: Refuse, on_seed: Callable[[Callable[[int], object], int], None]) -> Iterator[None]:
    """Refuse to save, restore or advance torch's default generator.

    Args:
        on_seed: Called instead of seeding it, with the function that seeds it and the seed.
    """
    original = torch.default_generator

    class Guard:
        def manual_seed(self, seed: int) -> None:
            on_seed(original.manual_seed, seed)

        def __getattr__(self, name: str) -> Callable[..., NoReturn]:
            # Only a call is refused: modules that are imported meanwhile may look at the methods.
            return lambda *args: refuse(f"`{name}` of torch's default generator")

    owners: tuple[Any, ...] = (torch, torch.random)
    for owner in owners:
        owner.default_generator = Guard()
    try:
        yield
    finally:
        for owner in owners:
            owner.default_generator = original


def find_tensor(matches: Callable[[torch.Tensor], bool]) -> torch.Tensor | None:
    """Return a live tensor that matches, or None. Garbage is collected only if it might hold such a tensor."""
    if _any_tensor(matches) is None:
        return None
    gc.collect()
    return _any_tensor(matches)


def _any_tensor(matches: Callable[[torch.Tensor], bool]) -> torch.Tensor | None:
    tensors = (tracked for tracked in gc.get_objects() if issubclass(type(tracked), torch.Tensor))
    return next((tensor for tensor in tensors if matches(tensor)), None)
