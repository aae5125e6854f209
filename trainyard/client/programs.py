"""`trainyard.run`: submits a program of the user's, unchanged."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from trainyard.client._sync.client import Client
from trainyard.client._sync.handle import JobHandle
from trainyard.client.code_archive import pack
from trainyard.client.git_source import read_git
from trainyard.client.program_spec import ProgramOptions, program_spec


class ProgramKeywords(TypedDict, total=False):
    """The options of `run`, which are those of `trainyard run`."""

    gpus: int | None
    nodes: int | None
    partition: str | None
    time: str | None
    name: str | None
    code: str | Path
    env: Mapping[str, str]
    venv: str | Path | None
    container: str | None
    retries: int | None
    resume_flag: str | None
    signal: str | None


def run(command: Sequence[str], *, client: Client | None = None, **options: Unpack[ProgramKeywords]) -> JobHandle:
    """Upload the folder, submit the command as a job and return its handle, as `trainyard run --detach` does.

    Args:
        command: the program and its arguments: `["python", "train.py"]`, also with `torchrun`, `accelerate launch` or
            `deepspeed`.
        client: the client for the request and the handle; default: a new one.

    Keyword arguments:
        gpus: number of all GPUs; default: those that the command's launcher starts, else 1.
        nodes: number of nodes among which the GPUs are divided.
        partition: Slurm partition.
        time: time limit, such as `90m`, `4h`, `2d` or `1-12:00`.
        name: display name of the job; default: the program's.
        code: the folder to upload; default: the current one.
        env: environment variables.
        venv: folder of a virtual environment on the nodes.
        container: container image for the ranks.
        retries: retries after errors; default: 2.
        resume_flag: arguments for a start that resumes, such as `--resume {checkpoint_dir}/last.ckpt`.
        signal: the signal that warns the program, and how long before the time limit: `SIGUSR1@2m`.

    Raises:
        InvalidRequestError: the command or an option is not understood, or the folder lacks the program.
        SpecError: the folder cannot be packed.
    """
    return submit_program(client or Client(), command, ProgramOptions(**options))


def submit_program(client: Client, command: Sequence[str], options: ProgramOptions) -> JobHandle:
    """Upload the folder and submit the command; raises as `run` does."""
    folder = Path(options.code)
    source = read_git(folder)
    document = program_spec(command, options, source)
    digest = client.upload(pack(folder, source=source))
    return client.submit(document | {"code": digest})
