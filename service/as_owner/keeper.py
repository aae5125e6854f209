"""The keeper: a process of the service's account between the service and a helper.

It holds a descriptor of the service, such as a lock, until the helper has ended, also when the service has been killed.
The helper does not inherit it: its owner could stop the helper, and keep the lock. An owner can neither stop nor end
the keeper. It uses the standard library alone.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress


def main(drop: str, end: str, *command: str) -> None:
    """Run the helper, and end it at a time.

    Args:
        drop: The account of the helper as JSON: arguments of `Popen`.
        end: Time on the monotonic clock.
    """
    try:
        helper = subprocess.Popen(command, start_new_session=True, **json.loads(drop))
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"the helper cannot be started: {error}")
    # The service waits for the end of the helper's outputs.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    try:
        helper.wait(max(0.0, float(end) - time.monotonic()))
    except subprocess.TimeoutExpired:
        # This ends stopped processes too. The helper is the leader of its group, and is not reaped yet.
        with suppress(PermissionError):  # It runs by sudo, as another account.
            os.killpg(helper.pid, signal.SIGKILL)
        helper.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
