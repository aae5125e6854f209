"""`generate`: continues a text with a trained model, on this machine."""

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Annotated

import typer
from pydantic import ValidationError

from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.checkpoints import progress_bars
from trainyard.cli.completion import complete_job
from trainyard.cli.conversion import convert, run_module
from trainyard.cli.errors import GenerationError, UsageError, print_note
from trainyard.cli.output import one_line, print_json, sanitize
from trainyard.contract.wire.export import ExportRequest
from trainyard.contract.wire.generation import GenerationRequest, GenerationSettings, GenerationUpdate
from trainyard.loading.references import fetch_source
from trainyard.loading.sources import Choice, find_folder, is_folder


def generate(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            autocompletion=complete_job,
            help="A job, a registered model (NAME, NAME@ALIAS or NAME@VERSION), or a folder (with a `/`).",
        ),
    ],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to continue; - reads it from stdin.")],
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="The most tokens to add, within the model's context.")
    ] = 256,
    temperature: Annotated[
        float, typer.Option(min=0, max=100, help="0: the most likely token; larger values are more random.")
    ] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Repeats the same random choices.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="best|latest|STEP", help="A checkpoint of the job instead of its export.")
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the base model here, if it is not that of the spec."),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask as a user, in the format of the chat template.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a text with a trained model, and print it as it is made. Needs torch and transformers on this machine.

    Example: trainyard generate my-run "def main(" --max-new-tokens 80
    """
    _require_packages()
    settings = GenerationSettings(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, chat=chat)
    text = sys.stdin.read() if prompt == "-" else prompt
    folder = _find(ctx, source, Choice(checkpoint, base.absolute() if base else None), quiet=as_json)
    request = GenerationRequest(
        folder=str(folder.absolute()), base=str(base.absolute()) if base else None, prompt=text, settings=settings
    )
    done = run_model(request, (lambda chunk: None) if as_json else _print_chunk)
    if as_json:
        result = done.model_dump(mode="json", include={"text", "prompt_tokens", "new_tokens", "finish"})
        print_json({"object": "generation", **result})
        return
    print(flush=True)
    if done.finish == "length" and done.new_tokens < max_new_tokens:
        print_note(f"the context of the model is full after {done.new_tokens} tokens")


def _find(ctx: typer.Context, source: str, choice: Choice, *, quiet: bool) -> Path:
    if is_folder(source):
        if choice.checkpoint is not None:
            raise UsageError("--checkpoint is for jobs")
        return find_folder(source)

    def convert_here(request: ExportRequest) -> None:
        convert(request, quiet=quiet)

    with make_client(ctx) as client, progress_bars(quiet=quiet) as report_bytes:
        return fetch_source(client, source, choice, convert_here, report_bytes)


def run_model(request: GenerationRequest, on_text: Callable[[str], None]) -> GenerationUpdate:
    """Run the model in a process of its own, since the command line imports no torch, and return its last update.

    Args:
        on_text: Called with each chunk of the text.

    Raises:
        GenerationError: It failed.
    """
    last, status = run_module("trainyard.loading", request, lambda lines: _read_updates(lines, on_text))
    if last is not None and last.phase == "done":
        return last
    if last is not None and last.phase == "failed":
        raise GenerationError(one_line(last.message))
    if status == -signal.SIGKILL:
        raise GenerationError("the model was killed, probably because this machine has too little memory for it")
    raise GenerationError(f"the model ended with status {status}; set TRAINYARD_DEBUG=1 to see its output")


def _read_updates(lines: IO[bytes], on_text: Callable[[str], None]) -> GenerationUpdate | None:
    last = None
    for line in lines:
        with suppress(ValidationError):
            last = GenerationUpdate.model_validate_json(line)
            if last.phase == "text":
                on_text(last.text)
    return last


def _print_chunk(chunk: str) -> None:
    """Print a chunk of the text. A terminal gets no control characters, which could move its cursor."""
    sys.stdout.write(sanitize(chunk) if sys.stdout.isatty() else chunk)
    sys.stdout.flush()


def _require_packages() -> None:
    if missing := [name for name in ("torch", "safetensors", "transformers") if find_spec(name) is None]:
        raise UsageError(
            f"the model runs on this machine, which lacks {', '.join(missing)}; install it with: "
            "pip install 'trainyard[worker,hf]'"
        )
