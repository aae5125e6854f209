"""What a search of logs accepts, and how lines are classified."""

import pytest

from service.core.errors import InvalidRequestError
from service.logs.patterns import LinePattern, compile_pattern, level_of
from service.logs.search import MAX_BLOCK, MAX_LINE, Block, matching_lines
from tests.support.cpu_limit import at_most


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (b"2026-01-01 ERROR disk", "error"),
        (b"\x1b[31mERROR\x1b[0m", "error"),
        (b"Traceback (most recent call last):", "error"),
        (b"KeyError: 'hot'", "error"),
        (b"torch.OutOfMemoryError: CUDA out of memory", "error"),
        (b"error: no such file", "error"),
        (b"[rank0]: ValueError: x", "error"),
        (b"WARNING:root:slow", "warning"),
        (b"/a.py:3: UserWarning: old", "warning"),
        (b"eval error 0.25", None),
        (b"PREWARNINGS", None),
        (b"", None),
    ],
)
def test_levels(line: bytes, level: str | None) -> None:
    assert level_of(line) == level


def matching(pattern: LinePattern, text: bytes, offset: int = 0) -> list[tuple[int, str]]:
    return [(line.offset, line.text) for line, _ in matching_lines(Block(offset, text), pattern)]


def test_a_literal_is_no_pattern_and_ignores_case() -> None:
    text = "a.b\nAXB\nA.B ÄÖ\n".encode()
    assert matching(compile_pattern("a.b"), text) == [(0, "a.b"), (8, "A.B ÄÖ")]
    assert matching(compile_pattern("a.b", case_sensitive=True), text) == [(0, "a.b")]
    assert matching(compile_pattern("äö"), text) == [(8, "A.B ÄÖ")]
    assert matching(compile_pattern("a.b", regex=True), text) == [(0, "a.b"), (4, "AXB"), (8, "A.B ÄÖ")]


def test_expressions_are_bound_to_lines() -> None:
    text = b"step 1\nstep 2 done\nx\n"
    assert matching(compile_pattern(r"^step \d$", regex=True), text) == [(0, "step 1")]
    assert matching(compile_pattern(r"1\s+step", regex=True), text) == []
    assert matching(compile_pattern(r"1|done", regex=True), text) == [(0, "step 1"), (7, "step 2 done")]


def test_a_line_is_returned_once_and_with_its_level() -> None:
    text = b"ERROR aaa\naaa aaa\nWARNING aaa\n"
    assert [offset for offset, _ in matching(compile_pattern("a"), text)] == [0, 10, 18]
    assert matching(compile_pattern("a", level="error"), text) == [(0, "ERROR aaa")]
    assert [offset for offset, _ in matching(compile_pattern(None, level="warning"), text)] == [0, 18]


def test_a_long_line_is_cut_around_its_match() -> None:
    text = b"x" * 30_000 + b"needle" + b"y" * 30_000 + b"\n"
    [(offset, line)] = matching(compile_pattern("needle"), text)
    assert offset == 0
    assert "needle" in line
    assert len(line) <= MAX_LINE + 4
    assert (line[:3], line[-3:]) == ("… x", "y …")


def test_of_an_overwritten_line_the_matching_part_is_returned() -> None:
    text = b"\r10%|x\r20%|x\r30%|x\r\nnext\r\n"
    assert matching(compile_pattern("20%"), text) == [(0, "20%|x")]
    assert matching(compile_pattern("next"), text) == [(20, "next")]


@pytest.mark.parametrize("query", ["(", "a{1001}", r"(a)\1", "(?=a)", "(((a{100}){100}){100})", "\\"])
def test_invalid_and_large_expressions_are_refused(query: str) -> None:
    with pytest.raises(InvalidRequestError, match="RE2"):
        compile_pattern(query, regex=True)


def test_nothing_to_search_for_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="level"):
        compile_pattern("")


@pytest.mark.parametrize("query", ["(a+)+$", "(?:a|aa)*b", "^.*(?:.?){100}q$", "(.{0,300}a){2}z", "(?:.*,){15}z"])
def test_time_of_a_block_is_bounded(query: str) -> None:
    pattern = compile_pattern(query, regex=True)
    for text in (b"a" * (MAX_BLOCK - 1) + b"\n", b"a,b c 1 2\n" * (MAX_BLOCK // 10)):
        with at_most(3):
            matching(pattern, text)
