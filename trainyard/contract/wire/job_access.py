"""Access to a running job: the request, its response, and the output of the nodes for `trainyard exec`."""

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from trainyard.contract.base import NonNegativeInt, Resource, ShortText, Strict, example

AccessKind = Literal["shell", "exec"]

_CHUNK = 600
"""Bytes of output in a record: Slurm passes lines of at most 1024 bytes on as a whole."""
_MAX_SHOWN_NODE = 64
_MAX_MESSAGE = 500


class AccessRequest(Strict):
    """The body of `POST /v1/jobs/{id}/access`."""

    kind: AccessKind = Field(examples=["exec"])
    """`shell`: an interactive shell beside a rank. `exec`: a command on each node, or on the node of `rank`."""
    rank: NonNegativeInt | None = None
    """Required for a shell."""
    program: ShortText | None = Field(default=None, examples=["nvidia-smi"])
    """The name of the command, without its arguments, for the audit. Required for `exec`."""

    @model_validator(mode="after")
    def _complete(self) -> "AccessRequest":
        if self.kind == "shell" and self.rank is None:
            raise ValueError("`rank` is required for a shell")
        if (self.kind == "exec") != (self.program is not None):
            raise ValueError("`program` is required for `exec`, and not allowed otherwise")
        return self


class NodeRanks(Resource):
    """One node of an attempt."""

    name: str
    """Its name in the scheduler."""
    ranks: list[int]


class AccessResource(Resource):
    """The data with which a client starts a program beside the ranks of a job. It contains no secret."""

    model_config = example(
        command=[
            "python3",
            "-P",
            "-m",
            "worker.environment.companion",
            "/shared/runs/job_01kdvdna00az9cxjnszk8v8abh/attempts/1-0123456789abcdef",
        ]
    )

    object: Literal["job_access"] = "job_access"
    job_id: str
    attempt: int
    """Number of the attempt that runs."""
    scheduler: str
    scheduler_id: str | None = Field(default=None, examples=["4711"])
    account: str = Field(examples=["anna"])
    """The Unix account of the job, as which the program must run. Its uid, if the account has no name."""
    uid: int = Field(examples=[1000])
    folder: str = Field(examples=["/shared/runs/job_01kdvdna00az9cxjnszk8v8abh/attempts/1-0123456789abcdef"])
    """The folder of the attempt on the nodes."""
    command: list[str]
    """The program that runs on the node; it enters the environment of the ranks. The client appends arguments."""
    nodes: list[NodeRanks] = Field(examples=[[{"name": "node1", "ranks": [0, 1]}]])
    """The nodes to enter: the node of `rank`, or all nodes."""


class CommandOutput(Strict):
    """A part of a command's output on a node."""

    node: Annotated[str, Field(max_length=_MAX_SHOWN_NODE)]
    stream: Literal["stdout", "stderr"]
    data: Annotated[str, Field(max_length=2 * _CHUNK)]
    """Base64."""


class CommandEnd(Strict):
    """The end of a command on a node."""

    node: Annotated[str, Field(max_length=_MAX_SHOWN_NODE)]
    exit_code: Annotated[int, Field(ge=0, le=255)]
    """128 plus the number of the signal that ended the command."""
    timed_out: bool = False
    message: Annotated[str, Field(max_length=_MAX_MESSAGE)] = ""
    """Why the command could not run."""


def format_output(node: str, stream: Literal["stdout", "stderr"], data: bytes) -> Iterator[bytes]:
    """Yield the lines that carry a chunk of output."""
    for start in range(0, len(data), _CHUNK):
        text = base64.b64encode(data[start : start + _CHUNK]).decode()
        yield _line({"node": node[:_MAX_SHOWN_NODE], "stream": stream, "data": text})


def format_end(node: str, exit_code: int, *, timed_out: bool = False, message: str = "") -> bytes:
    """Return the line with the end of the command."""
    end = {"node": node[:_MAX_SHOWN_NODE], "exit_code": exit_code, "timed_out": timed_out}
    return _line({**end, "message": message.encode("ascii", "replace").decode()[:_MAX_MESSAGE]})


def _line(record: dict[str, object]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def parse_record(line: bytes) -> tuple[CommandOutput, bytes] | CommandEnd | None:
    """Return the record in a line, for output with its bytes; None for other lines."""
    try:
        document = json.loads(line)
        if not isinstance(document, dict) or "exit_code" in document:
            return CommandEnd.model_validate(document)
        record = CommandOutput.model_validate(document)
        return record, base64.b64decode(record.data, validate=True)
    except (ValueError, ValidationError, RecursionError, binascii.Error):
        return None
