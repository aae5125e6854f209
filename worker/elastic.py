"""torchrun, and a file that says how its ranks ended: `python -m worker.elastic <report file> <torchrun's arguments>`.

torchrun prints which rank was killed by which signal, but tells it to no program.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from trainyard.contract.layout import write_atomic
from worker.processes import PARENT

_NO_FILE = "<N/A>"
"""torchrun's word for the error file of a rank that left none."""


def main(report: Path, arguments: list[str]) -> int:
    """torchrun's exit code."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    os.environ[PARENT] = str(os.getpid())
    try:
        torchrun(arguments)
    except ChildFailedError as error:
        ended = [
            {
                "rank": rank,
                "exitcode": failure.exitcode,
                "pid": failure.pid,
                "time": failure.timestamp,
                **_word(failure.error_file_data if failure.error_file != _NO_FILE else None),
            }
            for rank, failure in error.failures.items()
        ]
        write_atomic(report, json.dumps(ended))
        return 1
    return 0


def _word(document: Any) -> dict[str, str]:
    """What a program left in torchrun's error file (`@record`); ours leave theirs elsewhere."""
    word = document.get("message") if isinstance(document, dict) else None
    if isinstance(word, str):
        return {"message": word}
    if not isinstance(word, dict):
        return {}
    trace = word.get("extraInfo", {}).get("py_callstack", "")
    return {"message": str(word.get("message", "")), "traceback": str(trace)}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
