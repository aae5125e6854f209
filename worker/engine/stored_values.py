"""Values of a checkpoint that were stored in other types than the run stores them in: its parameters, its moments."""

from collections.abc import Mapping
from typing import Any

import torch

from worker.engine.optimizers.bucketed import SCALE
from worker.engine.optimizers.encodings import POSITIVE_MOMENTS, EncodedRows, scales_shape
from worker.engine.optimizers.shards import as_matrix, local_part, sharded_like, zeros_by_row

StateDict = dict[str, Any]
Dtypes = Mapping[str, torch.dtype]
"""The types of a checkpoint's tensors by their names, such as `model.0.weight`."""


def match_parameters(state: StateDict, stored: Dtypes) -> None:
    """Replace the tensors of `model` and `low_halves` by new tensors wherever a checkpoint has a parameter in another
    form: as two halves, or as one fp32 tensor."""
    model, halves = state["model"], state.setdefault("low_halves", {})
    for name, tensor in list(model.items()):
        is_split = f"low_halves.{name}" in stored
        if is_split == (name in halves):
            continue
        model[name] = torch.empty_like(tensor, dtype=stored.get(f"model.{name}", tensor.dtype), requires_grad=False)
        if is_split:
            halves[name] = torch.empty_like(tensor, dtype=torch.int16, requires_grad=False)
        else:
            del halves[name]
    if not halves:
        del state["low_halves"]


def match_moments(moments: StateDict, stored: Dtypes) -> None:
    """Replace the moments of a template by new tensors wherever a checkpoint has them in int8 and the run has not, or
    the other way round. Other types are converted while they are loaded."""
    for name, tensor in list(moments.items()):
        saved = stored.get(f"optimizer.{name}")
        if saved is None or torch.uint8 not in (saved, tensor.dtype) or saved == tensor.dtype:
            continue
        moments[name] = torch.empty_like(tensor, dtype=saved)
        if saved == torch.uint8:
            moments[name + SCALE] = zeros_by_row(tensor, scales_shape(tensor.shape))
        else:
            del moments[name + SCALE]


def decoded_moments(moments: StateDict) -> StateDict:
    """Return loaded moments, with int8 moments decoded to fp32, and without their scales."""
    return {
        name: sharded_like(_decoded(moments, name), tensor) if name + SCALE in moments else tensor
        for name, tensor in moments.items()
        if not name.endswith(SCALE)
    }


def convert_moments(loaded: StateDict, live: StateDict) -> None:
    """Store loaded moments in the run's own tensors, where these are others."""
    for name, tensor in live.items():
        if not name.endswith(SCALE) and loaded[name] is not tensor:
            _encoded_rows(live, name).encode(as_matrix(_decoded(loaded, name)))


def _decoded(moments: StateDict, name: str) -> torch.Tensor:
    """Return this rank's part of a moment: fp32, in the shape of the parameter's."""
    return _encoded_rows(moments, name).decode().reshape(local_part(moments[name]).shape)


def _encoded_rows(moments: StateDict, name: str) -> EncodedRows:
    scales = moments.get(name + SCALE)
    positive = name.rpartition(".")[2] in POSITIVE_MOMENTS
    return EncodedRows(as_matrix(moments[name]), None if scales is None else local_part(scales), positive=positive)
