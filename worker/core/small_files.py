"""Reading small files in folders where another account may have put something else in their place."""

import os
import stat
from pathlib import Path


def read_small_file(path: Path, limit: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: It cannot be read, is a link or not a regular file, or is longer than `limit` bytes.
    """
    # Opening a pipe would wait for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "is no regular file", str(path))
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(0, f"has more than {limit} bytes", str(path))
    return data
