"""Memory of the GPUs that a job could get, by the type names of Slurm or the setting of the administrator.

Slurm does not report memory. The table has the sizes that the driver reports, in GiB; a type that is sold in several
sizes has the smallest and the largest.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.contract.sizes import GIB
from trainyard.contract.spec.sections import Resources
from trainyard.contract.wire.cluster import ClusterResource

MACHINE = "this machine's memory"

_TABLE: Mapping[str, tuple[float, float]] = {
    "a10": (22, 24), "a100": (39.4, 80), "a16": (15, 16), "a2": (15, 16), "a30": (24, 24), "a40": (45, 48),
    "a800": (39.4, 80), "a4000": (16, 16), "a5000": (24, 24), "a6000": (48, 48), "b200": (178, 192), "b300": (268, 288),
    "gh200": (94, 144), "gtx1080": (8, 8), "gtx1080ti": (11, 11), "h100": (79, 95), "h200": (139, 144), 
    "h800": (79, 80),
    "l4": (22, 24), "l40": (44, 48), "l40s": (44, 48), "mi210": (64, 64), "mi250": (64, 64), "mi250x": (64, 64),
    "mi300x": (191, 192), "p100": (12, 16), "p40": (22, 24), "rtx2080ti": (11, 11), "rtx3090": (24, 24),
    "rtx4090": (24, 24), "rtx5090": (32, 32), "rtx6000": (24, 96), "rtx8000": (45, 48), "t4": (14.5, 16),
    "titanrtx": (24, 24), "v100": (15.7, 32), "v100s": (31, 32),
}  # fmt: skip
_VENDOR_PREFIX = re.compile(r"^(?:nvidia|amd|tesla|geforce|quadro|instinct)[-_ ]*")
_SIZE = re.compile(r"(?:^|[-_.])(\d{1,3})g(?:b|ib)(?=$|[-_])")


@dataclass(frozen=True)
class Device:
    """A type of GPU, and the range of its memory in bytes. GPUs of one type can differ in memory. None: unknown."""

    type: str | None
    min_bytes: int | None = None
    max_bytes: int | None = None


def device_of(type_: str | None, sizes: Mapping[str, float]) -> Device:
    """Return the device of a type: by the setting, else by a size in the name (`a100_80gb`), else by the table."""
    name = (type_ or "").lower()
    if name in sizes:
        return _device(type_, sizes[name], sizes[name])
    plain = name
    while (shorter := _VENDOR_PREFIX.sub("", plain)) != plain:
        plain = shorter
    if size := _SIZE.search(plain):
        # A MIG slice (`1g.10gb`) has a little less than its name states.
        return _device(type_, float(size[1]) * (0.9 if "g." in plain else 0.95), float(size[1]))
    model = re.split(r"[-_ ]", re.sub(r"^(rtx|gtx|titan)[-_ ]", r"\1", plain))[0]
    known = _TABLE.get(model) or _TABLE.get(model.removeprefix("rtx"))
    return _device(type_, *known) if known else Device(type_)


def _device(type_: str | None, min_bytes: float, max_bytes: float) -> Device:
    return Device(type_, int(min_bytes * GIB), int(max_bytes * GIB))


def devices(resources: Resources, cluster: ClusterResource, sizes: Mapping[str, float]) -> list[Device]:
    """Return every type that a job with these resources could get; empty if the snapshot does not show any."""
    if resources.gpu_type is not None:
        return [device_of(resources.gpu_type, sizes)]
    names = resources.partition.split(",") if resources.partition else None
    partitions = [p for p in cluster.partitions if (p.name in names if names else p.default)]
    types = {type_ for partition in partitions for shape in partition.shapes for type_ in shape.gpus}
    if not types and cluster.backend == "local":
        types = {""}
    return [device_of(type_ or None, sizes) for type_ in sorted(types)]


def smallest(available: Sequence[Device]) -> int | None:
    """Return the memory in bytes that each device has at least; None if not known for all."""
    sizes = [device.min_bytes for device in available]
    known = [size for size in sizes if size is not None]
    return min(known) if known and len(known) == len(sizes) else None


def largest(available: Sequence[Device]) -> int | None:
    """Return the memory in bytes that no device exceeds; None if not known for all."""
    sizes = [device.max_bytes for device in available]
    known = [size for size in sizes if size is not None]
    return max(known) if known and len(known) == len(sizes) else None


def machine_bytes() -> int:
    """Return the size of this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def share_of_machine(total: int, ranks: int) -> Device:
    """Return a rank's share of this machine's memory as if it were a GPU of its own."""
    return Device(MACHINE, total // ranks, total // ranks)
