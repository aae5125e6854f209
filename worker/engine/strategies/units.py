"""Which modules become units of a sharded model, and what a rank then holds. Pure: nothing is wrapped here.

A unit's parameters are gathered together before its forward and let go of after it. What no unit takes stays with the
root, which is gathered for as long as the whole model computes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from trainyard.contract.spec.sections import Fsdp

ROOT = ""
_LISTS = (nn.ModuleList, nn.Sequential)


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered together."""

    module: str
    """The module's name; the root's is empty."""
    parameters: tuple[str, ...]
    """Their names; one of several names of a tied one."""
    size: int
    """Elements, all of them together."""


def plan_units(model: nn.Module, options: Fsdp) -> list[Unit]:
    """The units, inner before outer, in the order of the model; the root's own comes last and may be empty."""
    names = [*_chosen(model, options), ROOT]
    taken: set[int] = set()
    units = []
    for name in names:
        mine = [(path, p) for path, p in _named(model, name) if id(p) not in taken]
        taken.update(id(parameter) for _, parameter in mine)
        units.append(Unit(name, tuple(path for path, _ in mine), sum(parameter.numel() for _, parameter in mine)))
    return units


def _chosen(model: nn.Module, options: Fsdp) -> list[str]:
    match options.wrap:
        case "naive":
            return []
        case "layer":
            return [name for name in layers(model) if _stands_alone(model, name)]
        case "size":
            return _large(model, options.min_params or 1)


def layers(module: nn.Module, path: str = ROOT) -> Iterator[str]:
    """The elements of the outermost lists: a transformer's blocks, a plain network's layers."""
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if isinstance(module, _LISTS) and not isinstance(child, _LISTS):
            if any(True for _ in child.parameters()):
                yield inner
        else:
            yield from layers(child, inner)


def _large(model: nn.Module, least: int) -> list[str]:
    """From the inside out, every module that still has `least` parameters which no unit inside it took."""
    taken: set[int] = set()
    found = []
    for path, module in reversed(list(model.named_modules())):
        free = {id(p): p.numel() for p in module.parameters() if id(p) not in taken}
        # A list has no forward of its own, so nothing would gather its parameters.
        wrappable = path != ROOT and not isinstance(module, nn.ModuleList | nn.ModuleDict)
        if wrappable and sum(free.values()) >= least and _stands_alone(model, path):
            taken |= free.keys()
            found.append(path)
    order = {path: place for place, (path, _) in enumerate(model.named_modules())}
    return sorted(found, key=lambda path: (-path.count("."), order[path]))


def _stands_alone(model: nn.Module, path: str) -> bool:
    """Whether nothing outside the module reads its parameters.

    A tied weight is in one unit with all that share it. An embedding's may be read by the head (tied by hand) or by
    the model itself (positions), so it too stays where it is surely gathered.
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
    """Elements of parameters on one rank."""

    sharded: int
    """All the time."""
    most: int
    """At once: its shards and the gathered units. Prefetching may add the unit that is computed next."""


def parameter_footprint(
    model: nn.Module, units: list[Unit], *, rank: int, shards: int, keeps_gathered: bool = False
) -> ParameterFootprint:
    """What a rank holds of a model before it is sharded; every parameter is cut along its first dimension.

    `keeps_gathered`: units stay gathered until their backward (zero1, zero2), so at the turn all are.
    """
    sharded = sum(_rows(p, rank, shards) for p in model.parameters())
    if keeps_gathered:
        return ParameterFootprint(sharded, sharded + sum(unit.size for unit in units))
    nested = (sum(outer.size for outer in units if _contains(outer, unit)) for unit in units)
    return ParameterFootprint(sharded, sharded + max(nested))


def _rows(parameter: nn.Parameter, rank: int, shards: int) -> int:
    """As `torch.chunk` cuts: equal parts, rounded up, and the last ones short or empty."""
    rows = parameter.shape[0]
    chunk = -(-rows // shards)
    mine = max(0, min(chunk, rows - rank * chunk))
    return mine * (parameter.numel() // rows)


def _contains(outer: Unit, inner: Unit) -> bool:
    return outer.module in (ROOT, inner.module) or inner.module.startswith(f"{outer.module}.")
