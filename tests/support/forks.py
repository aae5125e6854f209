"""Runs a part of a test in a forked process, which may exit or set limits."""

import os
import traceback
from collections.abc import Callable


def in_a_fork(function: Callable[[], None]) -> int:
    """Return the exit status of the function's process: 0, 1 after an exception, or that of `os._exit`."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
