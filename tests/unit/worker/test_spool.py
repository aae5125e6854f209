import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.contract.wire.reports import MetricsBatch, Point
from trainyard.contract.wire.spool import SpoolCorruptError, format_record, parse_spool, read_acknowledged


def line(seq):
    point = Point(key="train/loss", step=seq + 1, value=float("nan"), time=datetime(2026, 1, 2, tzinfo=UTC))
    return format_record(seq, "metrics", MetricsBatch(execution=1, resumed_from_step=0, points=(point,)))


SPOOL = b"".join(line(seq) for seq in range(4))


class TestParseSpool:
    def test_written_records_are_parsed(self):
        records = list(parse_spool(SPOOL))
        assert [record.seq for record in records] == [0, 1, 2, 3]
        assert [record.body().points[0].step for record in records] == [1, 2, 3, 4]
        assert records[-1].end == len(SPOOL)

    def test_parsing_starts_at_an_offset(self, tmp_path):
        path = tmp_path / "spool"
        path.write_bytes(SPOOL)
        offset = next(parse_spool(SPOOL)).end
        assert [record.seq for record in parse_spool(path, offset)] == [1, 2, 3]

    @given(st.integers(0, len(SPOOL)))
    def test_partial_last_record_is_ignored(self, length):
        whole = SPOOL[:length].count(b"\n")
        assert [record.seq for record in parse_spool(SPOOL[:length])] == list(range(whole))

    @given(st.integers(0, len(SPOOL) - 1), st.integers(0, 7))
    def test_flipped_bit_is_detected(self, index, bit):
        damaged = bytearray(SPOOL)
        damaged[index] ^= 1 << bit
        intact = SPOOL[:index].count(b"\n")
        result = []
        with contextlib.suppress(SpoolCorruptError):
            for record in parse_spool(bytes(damaged)):
                result.append((record.kind, record.body_text))
        genuine = [(record.kind, record.body_text) for record in parse_spool(SPOOL)]
        assert result[:intact] == genuine[:intact]
        assert set(result) <= set(genuine)

    def test_a_wrong_checksum_is_reported_with_its_offset(self):
        damaged = SPOOL.replace(b'"step":2', b'"step":9')
        with pytest.raises(SpoolCorruptError, match="checksum") as raised:
            list(parse_spool(damaged))
        assert raised.value.offset == len(line(0))


class TestReadAcknowledged:
    def test_missing_file_has_nothing_acknowledged(self, tmp_path):
        assert read_acknowledged(tmp_path / "none") == 0
