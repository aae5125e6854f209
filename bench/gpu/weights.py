"""Replaced parts of the engine: weights whose values do not matter, and plain torch instead of kernels."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from worker.core.kernels import CheckedKernel

BLOCK = 2**20


@contextmanager
def repeated_weights() -> Iterator[None]:
    """Initialise models with one block of random numbers, repeated.

    torch draws on the host in one thread: 20 s for a model of 1B parameters, twice for each measurement. Recordings of
    an initialisation draw as always.
    """
    block = torch.randn(BLOCK, generator=torch.Generator().manual_seed(1))
    normal_, kaiming_uniform_ = nn.init.normal_, nn.init.kaiming_uniform_

    def is_recorded(tensor: torch.Tensor) -> bool:
        return tensor.is_meta or _get_current_dispatch_mode() is not None

    @torch.no_grad()
    def repeat_(tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0, generator: object = None) -> torch.Tensor:
        if is_recorded(tensor):
            return normal_(tensor, mean, std, generator)  # type: ignore[arg-type]
        scaled = block * std + mean
        for part in tensor.view(-1).split(BLOCK):
            part.copy_(scaled[: len(part)])
        return tensor

    def repeat_uniform_(tensor: torch.Tensor, *args: object, **named: object) -> torch.Tensor:
        if is_recorded(tensor):
            return kaiming_uniform_(tensor, *args, **named)  # type: ignore[arg-type]
        return repeat_(tensor, std=0.02)

    with ExitStack() as stack:
        stack.enter_context(patch.object(nn.init, "normal_", repeat_))
        stack.enter_context(patch.object(nn.init, "kaiming_uniform_", repeat_uniform_))
        yield


@contextmanager
def without_kernels() -> Iterator[None]:
    """Run the references of our kernels in their place."""

    def refer(kernel: CheckedKernel, *args: object) -> None:
        kernel._reference(*args)

    with patch.object(CheckedKernel, "__call__", refer):
        yield
