"""TensorBoard event files."""

import struct
from datetime import UTC, datetime

import pytest

from trainyard.cli.tensorboard import records
from trainyard.contract.wire.curves import Series

crc32c = pytest.importorskip("crc32c").crc32c


def test_a_file_begins_with_its_version_and_its_checksums_hold() -> None:
    times = [datetime(2026, 1, 1, tzinfo=UTC)] * 3
    series = Series(key="train/loss", steps=[1, 300, 2**40], values=[1.5, float("nan"), 1e300], times=times)
    data, messages = b"".join(records([series], crc32c)), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert unmasked(data[8:12]) == crc32c(data[:8])
        message = data[12 : 12 + length]
        assert unmasked(data[12 + length : 16 + length]) == crc32c(message)
        messages.append(message)
        data = data[16 + length :]
    assert b"brain.Event:2" in messages[0]
    assert [b"train/loss" in message for message in messages] == [False, True, True, True]
    assert messages[1].startswith(b"\x09" + struct.pack("<d", times[0].timestamp()) + b"\x10\x01\x2a")
    assert messages[1].endswith(b"\x15" + struct.pack("<f", 1.5))
    assert messages[3].endswith(b"\x15" + struct.pack("<f", float("inf")))


def unmasked(data: bytes) -> int:
    value = (struct.unpack("<I", data)[0] - 0xA282EAD8) & 0xFFFFFFFF
    return (value >> 17 | value << 15) & 0xFFFFFFFF
