"""TensorBoard's event files: records with a checksum around a message of protocol buffers. Pure, except for the
checksum.

A record is the length (8 bytes), its checksum, the message, its checksum; all little-endian, checksums CRC-32C, masked.
The message `Event` uses four fields: wall_time = 1, step = 2, file_version = 3 and summary = 5, whose `value` = 1 has
tag = 1 and simple_value = 2.
"""

import struct
from collections.abc import Callable, Iterator

from trainyard.contract.wire.curves import Series

Checksum = Callable[[bytes], int]


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
