"""`tensorboard`: write jobs' metrics as TensorBoard event files.

An event file has records: the length of a message (8 bytes), its checksum, the message of protocol buffers, its
checksum; all little-endian, checksums CRC-32C, masked. The message `Event` uses four fields: wall_time = 1, step = 2,
file_version = 3 and summary = 5, whose `value` = 1 has tag = 1 and simple_value = 2.
"""

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.arguments import TARGET_NAMES, JobsArgument, JsonOption, find_job, make_client
from trainyard.cli.errors import UsageError
from trainyard.cli.output import print_error, print_json, print_line
from trainyard.client import Client
from trainyard.client.download import safe_name
from trainyard.contract.wire.curves import Series
from trainyard.contract.wire.jobs import TERMINAL, JobResource

Checksum = Callable[[bytes], int]


def tensorboard(
    ctx: typer.Context,
    job_ids: JobsArgument,
    to: Annotated[Path, typer.Option(*TARGET_NAMES, help="Target folder; each job gets a subfolder.")] = Path(
        "tensorboard"
    ),
    as_json: JsonOption = False,
) -> None:
    """Write jobs' metrics as TensorBoard event files.

    Example: trainyard tensorboard last
    """
    try:
        from crc32c import crc32c
    except ImportError:
        raise UsageError("needs a package that is missing: pip install 'trainyard[tensorboard]'") from None
    with make_client(ctx) as client:
        for job_id in job_ids:
            job = find_job(client, job_id)
            folder = to / _folder(job)
            count = _write(client, job, folder, crc32c)
            if as_json:
                print_json({"object": "event_files", "job_id": job.id, "path": str(folder), "points": count})
            else:
                print_line(f"{job.id}: {count} points") if count else print_error(f"{job.id}: {_none(job)}")
    if not as_json:
        print_line(f"view them with: tensorboard --logdir {to}")


def _none(job: JobResource) -> str:
    return "ended without metrics" if job.status in TERMINAL else "no metrics yet"


def _folder(job: JobResource) -> str:
    """Return a folder name with the job's name and id, without characters that are unsafe in a path."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", job.name).strip("-")[:60] or "job"
    return f"{name}-{safe_name(job.id)[-6:]}"


def _write(client: Client, job: JobResource, folder: Path, checksum: Callable[[bytes], int]) -> int:
    series_list = client.metrics(job.id).series
    folder.mkdir(parents=True, exist_ok=True)
    # A fixed name: a repeated call replaces the file, so that TensorBoard does not show points twice.
    path = folder / f"events.out.tfevents.0000000000.{safe_name(job.id)}"
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.writelines(records(series_list, checksum))
    partial.replace(path)
    return sum(len(series.steps) for series in series_list)


def records(series: list[Series], checksum: Checksum) -> Iterator[bytes]:
    """Return the content of an event file with these series."""
    start = min((one.times[0].timestamp() for one in series if one.times), default=0.0)
    yield _record(_double_field(1, start) + _bytes_field(3, b"brain.Event:2"), checksum)
    for one in series:
        tag = _bytes_field(1, one.key.encode())
        for step, value, time in zip(one.steps, one.values, one.times, strict=True):
            summary = _bytes_field(5, _bytes_field(1, tag + _float_field(2, value)))
            yield _record(_double_field(1, time.timestamp()) + _varint_field(2, step) + summary, checksum)


def _record(message: bytes, checksum: Checksum) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + _mask(checksum(length)) + message + _mask(checksum(message))


def _mask(value: int) -> bytes:
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint_field(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double_field(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes_field(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _float_field(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # The value exceeds the range of 32 bits.
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(field << 3 | 5) + packed


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
