"""One rank, started by torchrun: `python -m worker <attempt folder>`."""

import sys

from trainyard.process_start import speed_up_imports


def main() -> None:
    speed_up_imports()
    from worker.rank.main import main as run_rank

    run_rank(sys.argv[1])


if __name__ == "__main__":
    main()
