"""Resource limits of the ranks. Soft limits are raised, since a shell's limits are too low for training."""

from contextlib import suppress
from resource import RLIM_INFINITY, RLIMIT_MEMLOCK, RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_STACK, getrlimit, setrlimit

_RAISED = (RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_MEMLOCK, RLIMIT_STACK)
_STACK_BYTES = 8 * 1024 * 1024
"""The kernel's default."""


def raise_soft_limits() -> None:
    """Raise this process's soft limits of open files, processes, locked memory and stack to the hard limits.

    The limit of core files stays: a dump of a rank may fill a disk.
    """
    for limit in _RAISED:
        soft, hard = getrlimit(limit)
        value = raised_stack(soft, hard) if limit == RLIMIT_STACK else hard
        # The kernel refuses more open files than fs.nr_open, even if the hard limit is higher.
        with suppress(OSError, ValueError):
            setrlimit(limit, (value, hard))


def raised_stack(soft: int, hard: int) -> int:
    """Return the soft limit of the stack in bytes.

    glibc gives each thread a stack of this size, but only 2 MiB if the limit is unlimited.
    """
    if hard != RLIM_INFINITY:
        return hard
    return soft if soft == RLIM_INFINITY else max(soft, _STACK_BYTES)
