"""The text of programs, as terminals show it at the end."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.contract.terminal_text import clean

PROGRAM_TEXTS = {
    "a\r\n\x1b[31mred\x1b[0m\n": "a\nred\n",
    "  0%|    | 0/9\r 50%|██  | 5/9\r100%|████| 9/9\nTraceback": "100%|████| 9/9\nTraceback",
    "\r10%\r20%\r": "20%",
    "\x1b]0;title\x07text": "text",
    "\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\": "link",
    "\x1bPstring\x1b\\text\x1b(B": "text",
    "\x9b1mbold\x9b0m": "bold",
    "back\x08space \x00 bell\x07": "backspace  bell",
    "\x1b[2J\x1b[1;1Hscreen\x1b[K": "screen",
    "\x1b[38;5;196mcolour\x1b[48:2::1:2:3mtrue": "colourtrue",
    "tab\tλ μ 漢字 \u202e": "tab\tλ μ 漢字 \u202e",
    "unfinished \x1b[3": "unfinished [3",
}
"""Texts as programs write them, and their clean forms."""


@pytest.mark.parametrize("text", PROGRAM_TEXTS)
def test_text_is_what_a_terminal_shows_at_the_end(text: str) -> None:
    assert clean(text) == PROGRAM_TEXTS[text]


@given(st.text(alphabet="ab\x1b[]0;m\x07\\\r\n\t\x9bP\x00λ"))
def test_clean_text_has_no_control_characters_and_stays(text: str) -> None:
    result = clean(text)
    assert not {character for character in result if unicodedata.category(character) == "Cc"} - {"\n", "\t"}
    assert clean(result) == result


@pytest.mark.parametrize("unit", ["x", "\r", "\x1b", "\x1b]", "\x1b[", "x\r", "0 \x1b]x", "\x1bP", "\x9b0", "\r\n"])
def test_hostile_text_takes_linear_time(unit: str) -> None:
    started = time.process_time()
    clean("a" + unit * 200_000)
    assert time.process_time() - started < 2
