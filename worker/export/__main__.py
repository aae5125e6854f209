"""Converts a checkpoint: `python -m worker.export` reads a request from stdin and writes updates to stdout."""

import os
import sys
import traceback

from trainyard.contract.wire.export import ExportRequest, ExportUpdate
from trainyard.process_start import speed_up_imports
from worker.core.processes import die_with_parent

_DISK_FULL = "the disk became full; name a folder on another disk with --output"


def main() -> int:
    """Return the exit status: 0, or 1 after an error, which is the last update."""
    die_with_parent(os.getppid())
    # Libraries print, too: only updates go to the reader.
    updates = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def report(update: ExportUpdate) -> None:
        print(update.model_dump_json(), file=updates, flush=True)

    try:
        request = ExportRequest.model_validate_json(sys.stdin.buffer.read())
        from worker.export.checkpoint import export_checkpoint

        kind, dtype = export_checkpoint(request, report)
        report(ExportUpdate(phase="done", kind=kind, dtype=dtype))
    except BrokenPipeError:
        return 1
    except Exception as error:
        traceback.print_exc()
        report(ExportUpdate(phase="failed", message=_describe(error)))
        return 1
    return 0


def _describe(error: Exception) -> str:
    from worker.core.errors import RefusedError

    if isinstance(error, RefusedError):
        return f"{error}. {error.hint}" if error.hint else str(error)
    if isinstance(error, ImportError):
        return f"{error}; install it with: pip install 'trainyard[worker,hf]'"
    text = str(error).strip().split("\n")[0]
    if "no space left" in text.lower() or "quota exceeded" in text.lower():
        return _DISK_FULL
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    speed_up_imports()
    sys.exit(main())
