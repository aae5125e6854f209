"""Generates text: `python -m trainyard.loading` reads a request from stdin and writes updates to stdout."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from trainyard.contract.wire.generation import GenerationRequest, GenerationUpdate
from trainyard.loading.errors import LoadError
from trainyard.process_start import speed_up_imports


def main() -> int:
    """Return the exit status: 0, or 1 after an error, which is the last update."""
    # Libraries print, too: only updates go to the reader.
    updates = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def report(update: GenerationUpdate) -> None:
        print(update.model_dump_json(), file=updates, flush=True)

    try:
        request = GenerationRequest.model_validate_json(sys.stdin.buffer.read())
        report(_generate(request, report_text=lambda text: report(GenerationUpdate(phase="text", text=text))))
    except BrokenPipeError:
        return 1
    except LoadError as error:
        report(GenerationUpdate(phase="failed", message=error.message.replace("base=", "--base")))
        return 1
    except Exception as error:
        traceback.print_exc()
        text = str(error).strip().split("\n")[0]
        report(GenerationUpdate(phase="failed", message=f"{type(error).__name__}: {text}"))
        return 1
    return 0


def _generate(request: GenerationRequest, report_text: Callable[[str], None]) -> GenerationUpdate:
    import torch

    from trainyard.loading.generation import generate_text
    from trainyard.loading.load import load_folder
    from worker.core.processes import die_with_parent

    die_with_parent(os.getppid())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = Path(request.base) if request.base else None
    model, tokenizer = load_folder(Path(request.folder), base=base, device=device)
    if not hasattr(model, "generate"):
        raise LoadError("this model generates no text; load it with trainyard.load")
    return generate_text(model, tokenizer, request.prompt, request.settings, report_text)


if __name__ == "__main__":
    speed_up_imports()
    sys.exit(main())
