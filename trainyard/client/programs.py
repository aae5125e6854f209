"""`trainyard.run`: submits a program of the user's, unchanged."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainyard.client._sync.client import Client
from trainyard.client._sync.handle import JobHandle
from trainyard.client.code_archive import pack
from trainyard.client.git_source import read_git
from trainyard.client.program_spec import ProgramOptions, program_spec


def run(
    command: Sequence[str],
    *,
    gpus: int | None = None,
    nodes: int | None = None,
    partition: str | None = None,
    time: str | None = None,
    name: str | None = None,
    code: str | Path = ".",
    env: Mapping[str, str] | None = None,
    venv: str | Path | None = None,
    container: str | None = None,
    retries: int | None = None,
    signal: str | None = None,
    client: Client | None = None,
) -> JobHandle:
    """Upload the folder, submit the command as a job and return its handle, as `trainyard run --detach` does.

    Args:
        command: the program and its arguments: `["python", "train.py"]`, also with `torchrun`, `accelerate launch` or
            `deepspeed`.
        gpus: number of all GPUs; default: those that the command's launcher starts, else 1.
        nodes: number of nodes among which the GPUs are divided.
        partition: Slurm partition.
        time: time limit, such as `90m`, `4h`, `2d` or `1-12:00`.
        name: display name of the job; default: the program's.
        code: the folder to upload.
        env: environment variables.
        venv: folder of a virtual environment on the nodes.
        container: container image for the ranks.
        retries: retries after errors; default: 2.
        signal: the signal that warns the program, and how long before the time limit: `SIGUSR1@2m`.
        client: the client for the request and the handle; default: a new one.

    Raises:
        InvalidRequestError: the command or an option is not understood, or the folder lacks the program.
        SpecError: the folder cannot be packed.
    """
    options = ProgramOptions(
        gpus=gpus,
        nodes=nodes,
        partition=partition,
        time=time,
        name=name,
        code=Path(code),
        env=env or {},
        venv=Path(venv) if venv is not None else None,
        container=container,
        retries=retries,
        signal=signal,
    )
    return submit_program(client or Client(), command, options)


def submit_program(client: Client, command: Sequence[str], options: ProgramOptions) -> JobHandle:
    """Upload the folder and submit the command; raises as `run` does."""
    source = read_git(options.code)
    document = program_spec(command, options, source)
    digest = client.upload(pack(options.code, source=source))
    return client.submit(document | {"code": digest})
