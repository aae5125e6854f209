"""Computes with a model whose parameters are in files, one module at a time."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from worker.deferred.model import Destination, Files
from worker.deferred.recording import DeferredTensor


@contextlib.contextmanager
def stream_values(module: nn.Module, tensors: Mapping[str, DeferredTensor], files: Files) -> Iterator[None]:
    """Give each inner module its own parameters while it computes; every call reads them again.

    A module that uses another module's parameters without calling it fails with torch's errors about the meta device.

    Args:
        tensors: The parameters by each of their names, all of them in `files`.
    """
    own: dict[str, dict[str, DeferredTensor]] = {}
    for name, tensor in tensors.items():
        path, _, attribute = name.rpartition(".")
        own.setdefault(path, {})[attribute] = tensor
    handles = []
    for path, attributes in own.items():
        inner = module.get_submodule(path)
        before = dict(inner.named_parameters(recurse=False))
        handles.append(inner.register_forward_pre_hook(_reader(attributes, files)))
        handles.append(inner.register_forward_hook(_restorer(before), always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _reader(attributes: Mapping[str, DeferredTensor], files: Files) -> Callable[..., None]:
    def read(module: nn.Module, inputs: Any) -> None:
        for attribute, tensor in attributes.items():
            memory = torch.empty(tensor.size, dtype=tensor.dtype)
            files.fill(tensor.storage, [Destination(memory, slice(0, len(memory)))])
            setattr(module, attribute, nn.Parameter(memory, requires_grad=False))

    return read


def _restorer(before: Mapping[str, nn.Parameter]) -> Callable[..., None]:
    def restore(module: nn.Module, inputs: Any, output: Any) -> None:
        for attribute, parameter in before.items():
            setattr(module, attribute, parameter)

    return restore
