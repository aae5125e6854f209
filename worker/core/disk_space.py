"""Room on disks: whether files fit before they are written, and whether a full or read-only filesystem has ended an
execution."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.sizes import format_size
from worker.core.errors import RefusedError, read_errors

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors of a filesystem that is full, over quota or read-only."""
_PROBE_BYTES = 64 * 1024
"""Bytes to write: more than fits into a block that is already allocated."""


def ended_by_full_disk(layout: AttemptLayout, execution: int) -> bool:
    """Return whether a rank reported a full disk, or could report nothing because the disk is full."""
    errors = read_errors(layout.errors, execution)
    if errors:
        return any(error.reason == "disk_full" for error in errors)
    return disk_problem(layout.root) is not None


def disk_problem(folder: Path) -> OSError | None:
    """Return the error of writing a small file in the folder if the filesystem is full, over quota or read-only."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        with probe.open("wb", buffering=0) as file:
            file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        return error if error.errno in DISK_ERRORS else None
    finally:
        with suppress(OSError):
            probe.unlink()
    return None


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
