"""One rank, started by torchrun: `python -m worker <attempt folder>`."""

import os
import sys

from trainyard.process_start import speed_up_imports
from worker.core.processes import SOCKET_VARIABLE


def main() -> None:
    if SOCKET_VARIABLE in os.environ:
        from worker.rank.fork_server import run_as_fork

        run_as_fork(sys.argv[1])
    speed_up_imports()
    from worker.rank.main import main as run_rank

    run_rank(sys.argv[1])


if __name__ == "__main__":
    main()
