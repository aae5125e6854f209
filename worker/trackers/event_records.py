"""Reads the records of a TensorBoard event file, which another process may still be writing.

A record is the length (8 bytes), its checksum, the message, its checksum; all little-endian, checksums CRC-32C, masked.
"""

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_RECORD = 64 * 1024 * 1024
"""Bytes of the largest message that is read; larger messages are skipped."""
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), bits reversed."""


class DamagedRecordError(Exception):
    """The file has no valid record at an offset where a record must begin."""


@dataclass(frozen=True)
class EventRecord:
    """One record of a file."""

    message: bytes
    end: int
    """The offset after the record."""


def read_records(path: Path, offset: int = 0) -> Iterator[EventRecord]:
    """Yield the complete records from an offset on. A record of which a part is missing is left for later.

    Raises:
        DamagedRecordError: A checksum is wrong.
        OSError: The file cannot be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DamagedRecordError("it is no regular file")
        file.seek(offset)
        while offset + _HEADER.size <= status.st_size:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or not any(header):
                return  # On a network filesystem, bytes that have not arrived are zeros; no record begins with them.
            length, checksum = _HEADER.unpack(header)
            if masked_crc32c(header[:8]) != checksum:
                raise DamagedRecordError(f"the length of the record at byte {offset} has a wrong checksum")
            end = offset + _HEADER.size + length + _CHECKSUM.size
            if end > status.st_size:
                return
            if length > MAX_RECORD:
                file.seek(end)
            else:
                content = file.read(length + _CHECKSUM.size)
                if len(content) < length + _CHECKSUM.size:
                    return
                message = content[:length]
                if masked_crc32c(message) != _CHECKSUM.unpack_from(content, length)[0]:
                    raise DamagedRecordError(f"the record at byte {offset} has a wrong checksum")
                yield EventRecord(message, end)
            offset = end


def masked_crc32c(data: bytes) -> int:
    """Return the checksum in its stored form: rotated, plus a constant."""
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes."""
    table, value = _TABLE, 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _table_entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE = tuple(_table_entry(byte) for byte in range(256))
