"""`plan --data`: the data of a spec is read before its submission, on this machine or by the service."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from glob import glob, has_magic
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Self

from pydantic import ValidationError

from trainyard.cli.errors import DataError, print_note
from trainyard.cli.output import is_terminal, one_line
from trainyard.client import Client
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.text_sources import FileSource, listed_paths
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from trainyard.contract.wire.data_accounts import DataAccounts, DataRequest, DataUpdate

_PACKAGES = ("torch", "numpy")
_PACKAGES_OF_MODELS = ("transformers", "jinja2")
_PACKAGES_OF_TABLES = ("pyarrow",)
_START_SECONDS, _GRACE_SECONDS = 60.0, 15.0
"""Time allowed before the first record, such as for imports, and after the last record. The process ends in time by
itself, unless a single call of a library takes longer."""
_END_SECONDS = 2.0


def plan_data(
    client: Client, document: Mapping[str, Any], resolved: dict[str, Any], records: int, seconds: float, *, quiet: bool
) -> DataAccounts:
    """Return the accounts of the data of a spec.

    Args:
        document: The spec as it would be submitted.
        resolved: The same with defaults, as the service has returned it.
        records: Maximum number of records of each source.
        seconds: How long to read, at most.
        quiet: Whether to show no progress.

    Raises:
        DataError: The data cannot be read here.
        APIError: It can be read neither here nor by the service.
    """
    problem = local_problem(resolved)
    if problem is None:
        return _read_here(DataRequest(spec=resolved, records=records, seconds=seconds), quiet=quiet)
    print_note(f"the service reads the data, since {problem}")
    return client.plan_data(document, records=records, seconds=seconds)


def local_problem(resolved: Mapping[str, Any]) -> str | None:
    """Return why the data of a spec cannot be read on this machine; None if it can."""
    try:
        spec = parse_spec(resolved)
    except SpecError:
        return "it is of another release than this command"
    if not isinstance(spec.data, TextData):
        raise DataError("data has no account: accounts are made of files of texts, conversations and preferences")
    if missing := [name for name in _packages(spec, spec.data) if find_spec(name) is None]:
        return f"this machine lacks {', '.join(missing)} (pip install 'trainyard[worker,hf,data]')"
    for field, source in (spec.data.training_sources | spec.data.evaluation_sources).items():
        if not isinstance(source, FileSource):
            return f"{field} is an uploaded file"
        for path in listed_paths(source.path):
            named = glob(path) if has_magic(path) and not os.path.lexists(path) else [path]
            if not named or not all(os.access(one, os.R_OK) for one in named):
                return f"{path} cannot be read on this machine"
    if isinstance(spec.model, HfModel) and not os.access(Path(spec.model.path) / "config.json", os.R_OK):
        return f"model.path {spec.model.path} cannot be read on this machine"
    return None


def _packages(spec: TrainingSpec, data: TextData) -> Iterator[str]:
    yield from _PACKAGES
    if isinstance(spec.model, HfModel):
        yield from _PACKAGES_OF_MODELS
    sources = (data.training_sources | data.evaluation_sources).values()
    if any(isinstance(source, FileSource) and source.source != "jsonl" for source in sources):
        yield from _PACKAGES_OF_TABLES


def _read_here(request: DataRequest, *, quiet: bool) -> DataAccounts:
    """Read the data in a process of its own, since the command line imports no torch."""
    debug = os.environ.get("TRAINYARD_DEBUG") == "1"
    shows_progress = not quiet and is_terminal(stderr=True)
    with tempfile.TemporaryDirectory(prefix="trainyard-data-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "TMPDIR": folder, "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
        # In a session of its own: Ctrl-C interrupts this process, which ends the child.
        with (
            subprocess.Popen(
                [sys.executable, "-P", "-m", "worker.rank.data_plan"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if debug else subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            ) as process,
            _Limit(process, _START_SECONDS + request.seconds) as limit,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(request.model_dump_json().encode())
            for last in _updates(process.stdout, shows_progress=shows_progress):
                if last.records and not limit.is_final:
                    limit.set_final(request.seconds + _GRACE_SECONDS)
            status = process.wait()
    if last.result is not None:
        return last.result
    if last.failure is not None:
        raise DataError(one_line(f"{last.failure}. {last.hint or ''}".strip()))
    if limit.is_over:
        raise DataError(
            "reading the data takes too long; allow more time (--timeout) or read fewer records (--records)"
        )
    if status == -signal.SIGKILL:
        raise DataError("the process was killed, probably because this machine has too little memory")
    raise DataError(f"the process ended with status {status}; set TRAINYARD_DEBUG=1 to see its output")


class _Limit:
    """Ends a process after its time, and in any case at the end of the block."""

    def __init__(self, process: "subprocess.Popen[bytes]", seconds: float) -> None:
        self._process = process
        self._timer = self._started(seconds)
        self.is_over = False
        self.is_final = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            self._process.kill()

    def set_final(self, seconds: float) -> None:
        """Let the time begin anew."""
        self.is_final = True
        self._timer.cancel()
        self._timer = self._started(seconds)

    def _started(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        timer.start()
        return timer

    def _end(self) -> None:
        self.is_over = True
        self._process.kill()


def _updates(lines: IO[bytes], *, shows_progress: bool) -> Iterator[DataUpdate]:
    """Yield the updates, at least one."""
    yield DataUpdate()
    try:
        for line in lines:
            with suppress(ValidationError):
                update = DataUpdate.model_validate_json(line)
                yield update
                if shows_progress and update.records:
                    sys.stderr.write(f"\rreading the data: {update.records:,} record{'s' * (update.records > 1)}")
                    sys.stderr.flush()
    finally:
        # Ctrl-C ends the reading too.
        if shows_progress:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
