"""Checks that files fit on a disk, before they are written."""

import shutil
from pathlib import Path

from trainyard.contract.sizes import format_size
from worker.core.errors import RefusedError


def require_room(folder: Path, needed: int, what: str, hint: str) -> None:
    """Check the free space of the filesystem of a folder. A quota may still end the writing later.

    Args:
        needed: Bytes that will be written.
        what: The content to write, for the message.
        hint: The hint of the error.

    Raises:
        RefusedError: There is too little free space.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RefusedError(
            f"{what} needs {needed} bytes ({format_size(needed)}) in {folder}, which has {free} bytes "
            f"({format_size(free)}) free",
            hint,
        )
