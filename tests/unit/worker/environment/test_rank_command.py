"""The signals of a process that becomes the command of a rank."""

import signal
import subprocess
import sys

EXECUTES = """
import os, signal, sys
from worker.environment.rank_command import RankCommand, execute

for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
execute(RankCommand(("/bin/grep", "SigIgn", "/proc/self/status"), os.environ), {signal.SIGUSR1})
"""


def test_only_signals_that_ask_a_rank_to_stop_are_ignored() -> None:
    done = subprocess.run([sys.executable, "-c", EXECUTES], capture_output=True, text=True, check=True)
    ignored = int(done.stdout.split()[1], 16)
    numbers = {number for number in signal.Signals if ignored >> (number - 1) & 1}
    assert numbers == {signal.SIGTERM, signal.SIGUSR2}
