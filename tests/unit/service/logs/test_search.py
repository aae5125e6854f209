"""Blocks of whole lines, in both directions, for any division into chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.logs import search as module
from service.logs.search import blocks, blocks_from_end

_SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=8)
_LINES = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=12)


@given(
    _LINES, st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(2, 9), st.booleans(), st.integers(0, 20)
)
def test_blocks_are_the_log_cut_at_line_ends(
    lines: list[bytes], sizes: list[int], limit: int, ended: bool, dropped: int
) -> None:
    text = b"\n".join(lines) + (b"\n" if ended else b"")
    chunks, position = [], 0
    while position < len(text):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append((dropped + position, text[position : position + size]))
        position += size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_BLOCK", limit)
        for begin in range(dropped, dropped + len(text) + 1):
            forward = list(blocks(chunks, begin))
            assert b"".join(data for _, data in forward) == text[begin - dropped :]
            backward = list(blocks_from_end(list(reversed(chunks)), begin))
            assert b"".join(data for _, data in reversed(backward)) == text[: begin - dropped]
            for offset, data in forward + backward:
                assert text[offset - dropped : offset - dropped + len(data)] == data
                assert len(data) <= limit
                cut = offset - dropped + len(data)
                whole = data[-1:] == b"\n" or cut in (len(text), begin - dropped)
                assert whole or any(len(line) >= limit for line in lines), "only a long line is cut"


def test_bytes_that_were_dropped_are_left_out() -> None:
    assert list(blocks([(10, b"a\nb\n")], 0)) == [(10, b"a\nb\n")]
    assert list(blocks([(0, b"a\n"), (10, b"b\n")], 0)) == [(10, b"b\n")]
    assert list(blocks_from_end([(10, b"a\nb\n")], 5)) == []
