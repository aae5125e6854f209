"""One rank, started by torchrun: `python -m worker <attempt folder>`."""

import sys

from worker.rank.main import main

if __name__ == "__main__":
    main(sys.argv[1])
