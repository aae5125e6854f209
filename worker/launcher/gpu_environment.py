"""Default environment of ranks on GPUs: memory allocation, and torch's flight recorder."""

from collections.abc import Mapping
from pathlib import Path

from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.launch import LaunchDocument

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Two names of the same setting. If both are set, torch ignores one of them or raises an error."""
_RECORDED_COLLECTIVES = 2000


def gpu_environment(launch: LaunchDocument, attempt: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to the spec's and to `base`, which take precedence. Without NCCL there are none; a
    script's program chooses them itself.

    Args:
        attempt: The folder of the attempt.
        base: The environment of the launcher.
    """
    if launch.spec.backend != "nccl":
        return {}
    records = RunLayout(attempt.parent.parent).flight_records(attempt.name)
    present = {*base, *launch.spec.environment.variables}
    variables = {
        "TORCH_FR_BUFFER_SIZE": str(_RECORDED_COLLECTIVES),
        # torch appends the number of the rank.
        "TORCH_FR_DUMP_TEMP_FILE": str(records / "rank_"),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    if not present.intersection(_ALLOCATOR):
        # Segments that grow lose less memory to fragmentation, as with rows of different lengths.
        variables[_ALLOCATOR[0]] = "expandable_segments:True"
    return {name: value for name, value in variables.items() if name not in present}
