"""The machine on which `bench.gpu` runs, for its results."""

import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

_ROOT = Path(__file__).parents[2]
_SOURCES = ("worker", "bench/gpu", "trainyard/contract")
_QUERY = ("driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem")


def describe_machine(*, dry: bool) -> dict[str, Any]:
    """Return the device with its clocks, power limit and driver, and the versions that matter."""
    machine: dict[str, Any] = {
        "device": f"{os.cpu_count()} CPU cores, dry run" if dry else torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if not dry:
        machine["memory"] = f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.1f} GiB"
        machine["cuda"] = torch.version.cuda
        machine |= _nvidia_smi()
    return machine


def _nvidia_smi() -> dict[str, str]:
    """Return what the driver's program reports; nothing if it is missing."""
    try:
        output = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader", "--id=0"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_QUERY, (part.strip() for part in output.strip().split(",")), strict=False))


def sources_digest() -> str:
    """Return a digest of the programs that are measured."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
