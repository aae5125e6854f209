"""Divides a model into sharding units, and counts the parameters that a rank then holds. Pure functions.

A unit's parameters are gathered together before its forward and freed after it, except parameters that the backward
needs first. Parameters of no other unit belong to the root, which stays gathered while the model computes.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from trainyard.contract.spec.sections import Fsdp

ROOT = ""
_CONTAINERS = (nn.ModuleList, nn.Sequential)


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered together."""

    module: str
    """The module's name; empty for the root."""
    parameters: tuple[str, ...]
    """The names of the parameters; a tied parameter has one of its names."""
    size: int
    """The number of elements of all its parameters."""
    stays: bool = False
    """Whether the unit stays gathered from its forward to its backward, which follows at once."""


def plan_units(model: nn.Module, options: Fsdp) -> list[Unit]:
    """Return the units, inner before outer, in the order of the model. The root comes last and may be empty."""
    chosen = _chosen(model, options)
    names, staying = [*chosen, ROOT], _staying(model, chosen, options)
    assigned: set[int] = set()
    units = []
    for name in names:
        parameters = [(path, p) for path, p in _named(model, name) if id(p) not in assigned]
        assigned.update(id(parameter) for _, parameter in parameters)
        size = sum(parameter.numel() for _, parameter in parameters)
        units.append(Unit(name, tuple(path for path, _ in parameters), size, stays=name in staying))
    return units


def head_unit(model: nn.Module, units: Collection[Unit]) -> nn.Module | None:
    """Return the head if it is a separate unit."""
    name = _edges(model)[1]
    return model.get_submodule(name) if name and any(unit.module == name for unit in units) else None


def _staying(model: nn.Module, chosen: Sequence[str], options: Fsdp) -> set[str]:
    """Return the units with which the forward ends: the root, the head, and the last layer."""
    head = _edges(model)[1]
    inner = [name for name in chosen if name != head]
    last = inner[-1:] if options.wrap == "layer" else []
    return {ROOT, *last, *([head] if head else [])}


def _edges(model: nn.Module) -> tuple[str | None, str | None]:
    """Return the names of the input embeddings and the head, if the model uses both only by calling them.

    Nothing in a module shows that, so the model states it with the attribute `calls_embeddings`.
    """
    if not getattr(model, "calls_embeddings", False):
        return None, None
    source: Any = model
    ends = source.get_input_embeddings(), source.get_output_embeddings()
    if ends[0] is ends[1]:
        return None, None
    names = {id(module): name for name, module in model.named_modules()}
    first, last = (names[id(end)] if end is not None and _is_alone(model, names[id(end)]) else None for end in ends)
    return first, last


def _chosen(model: nn.Module, options: Fsdp) -> list[str]:
    match options.wrap:
        case "naive":
            return []
        case "layer":
            first, last = _edges(model)
            inner = [name for name in layers(model) if _is_self_contained(model, name)]
            return [*filter(None, [first]), *inner, *filter(None, [last])]
        case "size":
            return _large(model, options.min_params or 1)


def layers(module: nn.Module, path: str = ROOT) -> Iterator[str]:
    """Yield the names of the elements of the outermost lists: a transformer's blocks, a plain network's layers."""
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if isinstance(module, _CONTAINERS) and not isinstance(child, _CONTAINERS):
            if any(True for _ in child.parameters()):
                yield inner
        else:
            yield from layers(child, inner)


def _large(model: nn.Module, least: int) -> list[str]:
    """Return, from the inside out, every module with at least `least` parameters that no unit inside it has."""
    taken: set[int] = set()
    chosen = []
    for path, module in reversed(list(model.named_modules())):
        free = {id(p): p.numel() for p in module.parameters() if id(p) not in taken}
        # A list has no forward, so nothing would gather its parameters.
        wrappable = path != ROOT and not isinstance(module, nn.ModuleList | nn.ModuleDict)
        if wrappable and sum(free.values()) >= least and _is_self_contained(model, path):
            taken |= free.keys()
            chosen.append(path)
    order = {path: index for index, (path, _) in enumerate(model.named_modules())}
    return sorted(chosen, key=lambda path: (-path.count("."), order[path]))


def _is_self_contained(model: nn.Module, path: str) -> bool:
    """Return whether no code outside the module reads its parameters.

    A tied weight belongs to one unit with all modules that share it. The weight of an embedding may be read by the head
    (tied) or by the model itself (positions), so it belongs to the root unless the model states that it is called.
    """
    if isinstance(model.get_submodule(path), nn.Embedding) and path != _edges(model)[0]:
        return False
    return _is_alone(model, path)


def _is_alone(model: nn.Module, path: str) -> bool:
    """Return whether no module outside has a parameter of the module."""
    inside = {id(parameter) for parameter in model.get_submodule(path).parameters()}
    owners = (
        owner
        for owner, other in model.named_modules()
        if owner != path and not owner.startswith(f"{path}.")
        for parameter in other.parameters(recurse=False)
        if id(parameter) in inside
    )
    return next(owners, None) is None


def _named(model: nn.Module, path: str) -> list[tuple[str, nn.Parameter]]:
    prefix = f"{path}." if path else ""
    return [(f"{prefix}{name}", parameter) for name, parameter in model.get_submodule(path).named_parameters()]


@dataclass(frozen=True)
class ParameterFootprint:
    """The number of parameter elements on a rank."""

    sharded: int
    """Elements of its shards."""
    peak: int
    """The most elements at once: its shards and the gathered units. Prefetching may add the next unit."""


def parameter_footprint(
    model: nn.Module, units: list[Unit], *, rank: int, shards: int, reshard_after_forward: bool = True
) -> ParameterFootprint:
    """Return a rank's future share of a model that is not sharded yet. Parameters are sharded along dimension 0.

    Args:
        reshard_after_forward: False: units stay gathered until their backward (zero1, zero2), all of them at its start.
    """
    sharded = sum(_rows(p, rank, shards) for p in model.parameters())
    if not reshard_after_forward:
        return ParameterFootprint(sharded, sharded + sum(unit.size for unit in units))
    nested = (sum(outer.size for outer in units if _contains(outer, unit)) for unit in units)
    staying = sum(unit.size for unit in units if unit.stays)
    return ParameterFootprint(sharded, sharded + max(staying, *nested))


def _rows(parameter: nn.Parameter, rank: int, shards: int) -> int:
    """Return a rank's elements after `torch.chunk`: equal parts, rounded up; the last parts may be short or empty."""
    start, stop = shard_rows(parameter.shape[0], rank, shards)
    return (stop - start) * (parameter.numel() // parameter.shape[0])


def shard_rows(rows: int, rank: int, shards: int) -> tuple[int, int]:
    """Return the first row of a rank's shard and the row after its last."""
    chunk = -(-rows // shards)
    return min(rows, rank * chunk), min(rows, (rank + 1) * chunk)


def _contains(outer: Unit, inner: Unit) -> bool:
    return outer.module in (ROOT, inner.module) or inner.module.startswith(f"{outer.module}.")
