"""`trainyard.run`: submits a program of the user's, unchanged."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from trainyard.client._sync.client import Client
from trainyard.client._sync.handle import JobHandle
from trainyard.client.code_archive import CodeArchive, pack
from trainyard.client.code_folder import CodeFolder, code_folder
from trainyard.client.errors import InvalidRequestError
from trainyard.client.git_source import GitSource, read_git
from trainyard.client.left_out import ignored_note, included_files
from trainyard.client.program_command import Per
from trainyard.client.program_files import require_uploaded
from trainyard.client.program_launchers import unread_config_note
from trainyard.client.program_python import choose_python
from trainyard.client.program_spec import ProgramOptions, program_spec, read_program
from trainyard.client.references import split_end
from trainyard.contract.problems import Problem, SpecError

_THIS_FOLDER = ". `--code .` uploads the current folder alone"


class ProgramKeywords(TypedDict, total=False):
    """The options of `run`, same as of `trainyard run`."""

    gpus: int | None
    nodes: int | None
    per: Per | None
    partition: str | None
    time: str | None
    name: str | None
    project: str | None
    code: str | Path | None
    include: Sequence[str | Path]
    env: Mapping[str, str]
    secrets: Sequence[str]
    venv: str | Path | None
    active_venv: bool
    container: str | None
    retries: int | None
    resume_flag: str | None
    keep: Sequence[str]
    after: Sequence[str]
    signal: str | None


def run(command: str | Sequence[str], *, client: Client | None = None, **options: Unpack[ProgramKeywords]) -> JobHandle:
    """Upload the folder, submit the command as a job and return its handle, as `trainyard run --detach` does.

    Args:
        command: the program and its arguments: `["python", "train.py"]`, also with a launcher such as `torchrun`, or
            any other command. A text is split as a shell splits it.
        client: the client for the request and the handle; default: a new client.

    Keyword arguments:
        gpus: number of all GPUs; default: as many as the command's launcher uses, else 1.
        nodes: number of nodes among which the GPUs are divided.
        per: how often it is started: `rank`, once for each GPU; `node`; or `job`, once. Default: a Python program for
            each GPU, any other command once.
        partition: Slurm partition.
        time: time limit, such as `90m`, `4h`, `2d` or `1-12:00`.
        name: display name of the job; default: the program's.
        project: project of the job; default: the name of the git repository that has the folder.
        code: the folder to upload, in which the program starts; default: the git repository of the current folder, in
            which it starts in the current folder, or the current folder.
        include: files and folders that are uploaded although git ignores them.
        env: environment variables.
        secrets: names of secrets at the service, which become environment variables.
        venv: folder of a virtual environment on the nodes.
        active_venv: False ignores the virtual or conda environment that is active here.
        container: container image for the ranks.
        retries: retries after errors; default: 2.
        resume_flag: arguments for a start that resumes, such as `--resume {checkpoint_dir}/last.ckpt`.
        keep: files and folders that the program writes by relative paths: its next attempt finds them, and they are
            artifacts. The usual folders, such as `out` and `lightning_logs`, need not be named.
        after: jobs that must succeed before it starts; with `:ended` after its id or name, a job may end in any way.
        signal: the signal that warns the program, and how long before the time limit: `SIGUSR1@2m`.

    Raises:
        InvalidRequestError: the command or an option is not understood, or the folder lacks the program.
        SpecError: the folder cannot be packed.
    """
    argv = _split(command) if isinstance(command, str) else command
    return prepare_program(argv, ProgramOptions(**options)).submit(client or Client())


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise InvalidRequestError(f"the command {command!r} cannot be split: {error}") from None


@dataclass(frozen=True)
class PreparedProgram:
    """A program that is ready to be submitted."""

    document: Mapping[str, Any]
    """Its spec, without the digest of its code."""
    archive: CodeArchive
    folder: CodeFolder
    notes: tuple[str, ...]
    """Notes for the user."""

    def submit(self, client: Client) -> JobHandle:
        """Upload the code and submit the spec."""
        named = [split_end(reference) for reference in self.document.get("after", ())]
        after = {"after": [client.job(job).id + end for job, end in named]} if named else {}
        return client.submit({**self.document, **after, "code": client.upload(self.archive)})


def _packed(folder: CodeFolder, source: GitSource | None) -> CodeArchive:
    """Return the archive of the code.

    Raises:
        SpecError: as `pack`; of a whole repository, with the way to upload a part of it.
    """
    try:
        return pack(folder.root, source=source)
    except SpecError as error:
        if not folder.start:
            raise
        raise SpecError(
            [Problem(param=one.param, message=f"{one.message}{_THIS_FOLDER}") for one in error.problems]
        ) from None


def prepare_program(command: Sequence[str], options: ProgramOptions) -> PreparedProgram:
    """Return the spec and the archive of a program, without a request; raises as `run` does."""
    folder = code_folder(options.code)
    source = read_git(folder.root)
    python = choose_python(
        command,
        venv=options.venv,
        container=options.container,
        active=options.active_venv,
        variables=os.environ,
        own_prefix=Path(sys.prefix),
    )
    program, outside = read_program(command, folder)
    included = included_files(folder, options.include)
    if source:
        source = replace(source, files=source.files | included)
    archive = _packed(folder, source)
    if included and not included & archive.names:
        message = f"{min(included)!r} is excluded by .trainyardignore, or is a file that is never uploaded"
        raise InvalidRequestError(message, param="include")
    require_uploaded(program, folder, archive.names)
    ignored = ignored_note(source.ignored, archive.names, folder) if source else None
    document = program_spec(program, options, source, python, folder, archive.names)
    notes = (python.note, unread_config_note(command, os.environ), folder.note, outside, ignored)
    return PreparedProgram(document, archive, folder, tuple(note for note in notes if note))
