"""The launcher of one node: `python -m worker.launcher <attempt folder>`."""

import sys

from worker.launcher.supervisor import run

if __name__ == "__main__":
    run(sys.argv[1])
