"""A part of a test in a process of its own, which may end or limit itself."""

import os
import traceback
from collections.abc import Callable


def in_a_fork(play: Callable[[], None]) -> int:
    """Its exit status: 0, 1 after an exception, or what it called `os._exit` with."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            play()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
