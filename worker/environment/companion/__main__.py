"""Enters a running job on a node: `python -m worker.environment.companion FOLDER shell --rank 0`."""

import sys

from worker.environment.companion.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
