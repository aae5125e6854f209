"""torchrun, and a file that says how its ranks ended: `python -m worker.elastic <report file> <torchrun's arguments>`.

torchrun prints which rank was killed by which signal, but tells it to no program.
"""

import json
import os
import sys
from pathlib import Path

from trainyard.contract.layout import write_atomic
from worker.processes import PARENT


def main(report: Path, arguments: list[str]) -> int:
    """torchrun's exit code."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    os.environ[PARENT] = str(os.getpid())
    try:
        torchrun(arguments)
    except ChildFailedError as error:
        ended = [
            {"rank": rank, "exitcode": failure.exitcode, "pid": failure.pid, "time": failure.timestamp}
            for rank, failure in error.failures.items()
        ]
        write_atomic(report, json.dumps(ended))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
