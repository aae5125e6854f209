"""Which parameters a sharded model gathers together, on names: the rules of `worker/engine/strategies/units.py`."""

from collections.abc import Mapping

from service.planner.model_structure import Outline
from trainyard.contract.spec.sections import Fsdp


def unit_sizes(outline: Outline, options: Fsdp) -> Mapping[str, int]:
    """Elements that are gathered at once inside of each block: its largest unit. What no block has is the root's."""
    if options.wrap == "naive":
        return dict.fromkeys(outline.blocks, 0)
    inside = _by_block(outline)
    if options.wrap == "layer":
        return {block: sum(sizes.values()) for block, sizes in inside.items()}
    return {block: _largest(sizes, options.min_params or 1) for block, sizes in inside.items()}


def _by_block(outline: Outline) -> dict[str, dict[str, int]]:
    """Elements by module, for every block."""
    found: dict[str, dict[str, int]] = {block: {} for block in outline.blocks}
    for parameter in outline.parameters:
        block = block_of(parameter.name, found)
        if block is not None:
            found[block][parameter.module] = found[block].get(parameter.module, 0) + parameter.size
    return found


def block_of(name: str, blocks: Mapping[str, object]) -> str | None:
    """The block that a parameter is in."""
    parts = name.split(".")
    joined = (".".join(parts[:end]) for end in range(1, len(parts)))
    return next((path for path in joined if path in blocks), None)


def _largest(sizes: Mapping[str, int], least: int) -> int:
    """From the inside out, modules that still have `least` elements become units; the rest goes to the root."""
    free = dict(sizes)
    units = [0]
    paths = {".".join(parts[:end]) for path in sizes for parts in [path.split(".")] for end in range(1, len(parts) + 1)}
    for path in sorted(paths, key=lambda path: -path.count(".")):
        mine = {name: size for name, size in free.items() if name == path or name.startswith(f"{path}.")}
        if sum(mine.values()) >= least:
            units.append(sum(mine.values()))
            free = {name: size for name, size in free.items() if name not in mine}
    return max(units)
