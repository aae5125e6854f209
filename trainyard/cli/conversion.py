"""Work of the packages that import torch, in processes of their own, since the command line imports none of them: the
conversion of a checkpoint."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TypeVar

from pydantic import BaseModel, ValidationError

from trainyard.cli.errors import ConversionError
from trainyard.cli.output import is_terminal, one_line
from trainyard.contract.wire.export import ExportRequest, ExportUpdate

T = TypeVar("T")


def convert(request: ExportRequest, *, quiet: bool) -> ExportUpdate:
    """Run the conversion, show its progress unless `quiet`, and return its last update, which describes the export.

    Raises:
        ConversionError: It failed.
    """
    with _progress_bar(quiet=quiet) as show:
        last, status = run_module("worker.export", request, lambda lines: _last_update(lines, show))
    if last.phase == "done" and last.kind is not None:
        return last
    raise ConversionError(_describe_failure(last, status))


def run_module(module: str, request: BaseModel, read: Callable[[IO[bytes]], T]) -> tuple[T, int]:
    """Run a module that reads a request as JSON, and return what `read` makes of its output, and its exit status."""
    debug = os.environ.get("TRAINYARD_DEBUG") == "1"
    # In a session of its own: Ctrl-C interrupts this process, which ends the child. With -P, files in the current
    # folder do not replace modules.
    with subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if debug else subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(request.model_dump_json().encode())
            return read(process.stdout), process.wait()
        finally:
            process.kill()


def _last_update(lines: IO[bytes], show: Callable[[ExportUpdate], None]) -> ExportUpdate:
    last = ExportUpdate(phase="verifying")
    for line in lines:
        with suppress(ValidationError):
            last = ExportUpdate.model_validate_json(line)
            show(last)
    return last


def _describe_failure(last: ExportUpdate, status: int) -> str:
    if last.phase == "failed":
        return one_line(last.message)
    if status == -signal.SIGKILL:
        return f"the conversion was killed while {last.phase}, probably because this machine has too little memory"
    return f"the conversion ended with status {status} while {last.phase}; set TRAINYARD_DEBUG=1 to see its output"


@contextmanager
def _progress_bar(*, quiet: bool) -> Iterator[Callable[[ExportUpdate], None]]:
    """Show the phase, and the bytes that are read, on stderr if that is a terminal."""
    if quiet or not is_terminal(stderr=True):
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from trainyard.cli.tables import console

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("verifying", total=None)

        def show(update: ExportUpdate) -> None:
            total = update.bytes_total or None
            progress.update(task, description=update.phase, completed=update.bytes_done, total=total)

        yield show
