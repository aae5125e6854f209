"""The launcher of one node: `python -m worker.launcher <attempt folder>`."""

import sys

from worker.launcher.start import run

if __name__ == "__main__":
    run(sys.argv[1])
