"""Examples as text: learned parts, bounded length, and characters of several tokens."""

import numpy as np
import pytest

from tests.support.tokenizer_families import FAMILIES
from worker.data.shown_examples import shown_numbers, shown_text
from worker.data.token_rows import Segment
from worker.data.tokenizers import ByteTokenizer, HfTokenizer, completed_text, whole_text

DECODE = ByteTokenizer().decode


def segment_of(text, start=0):
    tokens = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
    return Segment(tokens, np.arange(len(tokens)) >= start)


def shown(segment, decode=DECODE):
    return [
        f"<{part.omitted_tokens}>" if part.omitted_tokens else f"[{part.text}]" if part.learned else part.text
        for part in shown_text(segment, decode).parts
    ]


def test_first_middle_and_last_example_are_shown():
    assert [shown_numbers(count) for count in (0, 1, 2, 3, 10)] == [[], [0], [0, 1], [0, 1, 2], [0, 5, 9]]


def test_learned_tokens_are_marked_but_never_the_first():
    assert shown(segment_of("abcd", 2)) == ["ab", "[cd]"]
    assert shown(segment_of("abcd")) == ["a", "[bcd]"]
    assert shown(segment_of("")) == []


def test_character_of_several_tokens_belongs_to_the_last():
    assert shown(segment_of("a漢b", 2)) == ["a", "[漢b]"]
    assert shown(Segment(segment_of("a漢").tokens[:-1], np.zeros(3, dtype=np.bool_))) == ["a\ufffd"]


def test_nul_is_shown():
    assert shown(segment_of("a\0b")) == ["a", "[\u2400b]"]


@pytest.mark.parametrize("count", [599, 600, 601, 100_000])
def test_middle_of_a_long_text_is_left_out(count):
    parts = shown_text(segment_of("x" * count), DECODE).parts
    omitted = sum(part.omitted_tokens for part in parts)
    assert sum(len(part.text) for part in parts) + omitted == count
    assert (omitted > 0) == (count > 600)


def test_text_is_bounded_in_characters_and_parts():
    wide = shown_text(segment_of("x" * 300), lambda tokens: "y" * 190 * len(tokens))
    assert sum(len(part.text) for part in wide.parts) <= 1800
    mixed = Segment(segment_of("x" * 400).tokens, np.arange(400) % 2 == 0)
    assert len(shown_text(mixed, DECODE).parts) <= 61
    assert (wide.tokens, wide.learned_tokens) == (300, 299)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_parts_join_to_the_text_for_every_tokenizer(name):
    tokenizer = HfTokenizer(FAMILIES[name]())
    for marked in (whole_text("Hello  world, ünï 🙂"), completed_text("What is it?", " A cat.\nReally")):
        (segment,) = tokenizer.encode([marked])
        joined = "".join(part.text for part in shown_text(segment, tokenizer.decode).parts)
        assert joined == tokenizer.decode(segment.tokens.tolist())
