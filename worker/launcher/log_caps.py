"""Log files that do not fill the disk: the blocks of a long one's beginning are given back, and its end stays.

The file keeps its length, and every byte its offset: ranks append to it, and the service counts by it. Filesystems that
cannot do so keep the whole file.
"""

import ctypes
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

_PUNCH_HOLE_KEEP_SIZE = 0x03
_BLOCK = 4096


class LogCaps:
    """Applied again and again to files that grow."""

    def __init__(self, limit: int) -> None:
        """`limit` is what one file may take, in bytes."""
        self._limit = limit
        self._dropped: dict[Path, int] = {}
        self._able = hasattr(ctypes.CDLL(None), "fallocate")

    def keep(self, path: Path) -> None:
        """Drop the beginning of a file that has outgrown the limit, down to half of it."""
        try:
            size = path.stat().st_size
            dropped = self._dropped.get(path, 0)
            if not self._able or size - dropped <= self._limit:
                return
            end = (size - self._limit // 2) // _BLOCK * _BLOCK
            _punch(path, end)
            self._dropped[path] = end
            log.info("%s: its first %d bytes were dropped", path.name, end)
        except FileNotFoundError:
            return  # its rank has not begun
        except OSError as error:
            self._able = False
            log.warning("log files are not kept small: %s", error)


def _punch(path: Path, end: int) -> None:
    mark = f"\n[trainyard: the first {end} bytes of this log were dropped]\n".encode()
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(handle, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(end)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        # The last of the dropped bytes make room for it.
        os.pwrite(handle, mark, end - len(mark))
    finally:
        os.close(handle)
