"""Records of event files that are incomplete, damaged or hostile."""

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.trackers.event_records import MAX_RECORD, DamagedRecordError, crc32c, masked_crc32c, read_records

MESSAGES = [b"first", b"", b"\0" * 40, b"last"]


def record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, message)]
    return length + checksums[0] + message + checksums[1]


def read(path: Path, offset: int = 0) -> list[bytes]:
    return [one.message for one in read_records(path, offset)]


def test_checksum_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_file_torn_at_every_byte_is_continued(tmp_path: Path) -> None:
    path, content = tmp_path / "events", b"".join(map(record, MESSAGES))
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        first = list(read_records(path))
        path.write_bytes(content)
        assert [one.message for one in first] + read(path, first[-1].end if first else 0) == MESSAGES


def test_flipped_bit_ends_the_file_or_hides_the_rest(tmp_path: Path) -> None:
    path, content = tmp_path / "events", b"".join(map(record, MESSAGES))
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        messages = []
        with pytest.raises(DamagedRecordError, match="checksum"):
            messages.extend(one.message for one in read_records(path))
        assert messages == MESSAGES[: len(messages)]


def test_huge_record_is_passed_over_without_its_content(tmp_path: Path) -> None:
    path, length = tmp_path / "events", struct.pack("<Q", MAX_RECORD + 1)
    header = length + struct.pack("<I", masked_crc32c(length))
    path.write_bytes(header)
    assert read(path) == []
    with path.open("r+b") as file:
        file.truncate(len(header) + MAX_RECORD + 5)
        file.seek(0, 2)
        file.write(record(b"after"))
    assert read(path) == [b"after"]


def test_impossible_length_is_waited_for(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**64 - 1)
    (tmp_path / "events").write_bytes(length + struct.pack("<I", masked_crc32c(length)) + b"x" * 100)
    assert read(tmp_path / "events") == []


def test_zeros_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "events").write_bytes(record(b"first") + bytes(4096))
    assert read(tmp_path / "events") == [b"first"]


def test_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(record(b"first"))
    (tmp_path / "events").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        read(tmp_path / "events")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(content=st.binary(max_size=300))
def test_any_content_gives_records_or_a_statement(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "events").write_bytes(content)
    with contextlib.suppress(DamagedRecordError):
        assert len(b"".join(read(tmp_path / "events"))) <= len(content)
