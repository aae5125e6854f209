"""Which modules become sharding units, and how many parameters a rank then holds. Pure functions.

A unit's parameters are gathered together before its forward and freed after it. Parameters of no other unit belong to
the root, which stays gathered while the model computes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

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
    """Their names; a tied parameter has one of its names."""
    size: int
    """The number of elements of all of them."""


def plan_units(model: nn.Module, options: Fsdp) -> list[Unit]:
    """Return the units, inner before outer, in the order of the model. The root comes last and may be empty."""
    names = [*_chosen(model, options), ROOT]
    assigned: set[int] = set()
    units = []
    for name in names:
        parameters = [(path, p) for path, p in _named(model, name) if id(p) not in assigned]
        assigned.update(id(parameter) for _, parameter in parameters)
        units.append(
            Unit(name, tuple(path for path, _ in parameters), sum(parameter.numel() for _, parameter in parameters))
        )
    return units


def _chosen(model: nn.Module, options: Fsdp) -> list[str]:
    match options.wrap:
        case "naive":
            return []
        case "layer":
            return [name for name in layers(model) if _is_self_contained(model, name)]
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
    (tied) or by the model itself (positions), so it belongs to the root.
    """
    module = model.get_submodule(path)
    if isinstance(module, nn.Embedding):
        return False
    inside = {id(parameter) for parameter in module.parameters()}
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
    """The number of parameter elements on one rank."""

    sharded: int
    """Elements of its shards."""
    peak: int
    """The most elements at once: its shards and the gathered units. Prefetching may add the next unit."""


def parameter_footprint(
    model: nn.Module, units: list[Unit], *, rank: int, shards: int, reshard_after_forward: bool = True
) -> ParameterFootprint:
    """Return what a rank will hold of a model that is not sharded yet. Parameters are sharded along dimension 0.

    Args:
        reshard_after_forward: False: units stay gathered until their backward (zero1, zero2), all of them at its start.
    """
    sharded = sum(_rows(p, rank, shards) for p in model.parameters())
    if not reshard_after_forward:
        return ParameterFootprint(sharded, sharded + sum(unit.size for unit in units))
    nested = (sum(outer.size for outer in units if _contains(outer, unit)) for unit in units)
    return ParameterFootprint(sharded, sharded + max(nested))


def _rows(parameter: nn.Parameter, rank: int, shards: int) -> int:
    """Return a rank's elements after `torch.chunk`: equal parts, rounded up, the last ones short or empty."""
    start, stop = shard_rows(parameter.shape[0], rank, shards)
    return (stop - start) * (parameter.numel() // parameter.shape[0])


def shard_rows(rows: int, rank: int, shards: int) -> tuple[int, int]:
    """Return the first row of a rank's shard and the row after its last."""
    chunk = -(-rows // shards)
    return min(rows, rank * chunk), min(rows, (rank + 1) * chunk)


def _contains(outer: Unit, inner: Unit) -> bool:
    return outer.module in (ROOT, inner.module) or inner.module.startswith(f"{outer.module}.")
