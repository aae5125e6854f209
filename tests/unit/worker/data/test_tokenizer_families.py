"""One encoder for all tokenizers: a text is tokenised once, as a whole, and gets the special tokens that it lacks.

The reference of what is learned is what TRL does: the completion begins where the tokens of the prompt alone and of the
whole text differ.
"""

from typing import Any

import pytest

from tests.support.tokenizer_families import FAMILIES, byte_level, fast
from worker.data.encode import encode_each
from worker.data.tokenizers import HfTokenizer, completed_text, whole_text

END = "</s>"
TEXTS = [
    "def main",
    "  two spaces",
    "ends\n",
    "\u00e9\u6f22 \U0001f642",
    "",
    "has </s> inside",
    "ends with </s>",
    "<s>begins",
    "a\u0301 e",
    "The code is:\n def main",
]
PAIRS = [
    ("The code is:\n", "def main"),
    ("abc", "def"),
    ("The answer is ", "4."),
    ("The answer is", " 4."),
    ("", "alone"),
    ("\u00e9", "\u6f22\U0001f642"),
    ("ends</s>", "answer"),
    ("Prompt:", "answer</s>"),
    ("a b ", "\n c"),
    ("The ans", "wer is"),
    ("same", "same"),
    ("<s>begun", " here"),
    ("2 + 2 =\n", "4\n"),
]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> Any:
    return FAMILIES[request.param]()


def tokens(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def added(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return what the tokenizer adds before and after a text."""
    whole, plain = list(tokenizer("a")["input_ids"]), tokens(tokenizer, "a")
    start = next(n for n in range(len(whole)) if whole[n : n + len(plain)] == plain)
    return whole[:start], whole[start + len(plain) :]


def with_specials(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text with a beginning and an end, once."""
    start, _ = added(tokenizer)
    ids = tokens(tokenizer, text) + ([] if text.endswith(END) else [tokenizer.eos_token_id])
    return ids if not start or ids[: len(start)] == start else start + ids


@pytest.mark.parametrize("text", TEXTS)
def test_text_has_the_tokenizers_special_tokens_once(family: Any, text: str) -> None:
    (segment,) = encode_each(HfTokenizer(family), [whole_text(text)])
    assert not isinstance(segment, ValueError)
    assert segment.tokens.tolist() == with_specials(family, text)
    assert segment.targets.all()


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_completion_begins_where_the_tokens_differ(family: Any, pair: tuple[str, str]) -> None:
    prompt, completion = pair
    (segment,) = encode_each(HfTokenizer(family), [completed_text(prompt, completion)])
    if isinstance(segment, ValueError):
        assert not family.is_fast
        assert "so that the first token of the answer is not known" in str(segment)
        return
    start, _ = added(family)
    ids, alone = with_specials(family, prompt + completion), tokens(family, prompt)
    before = alone if alone[: len(start)] == start else start + alone
    same = next((n for n, (one, other) in enumerate(zip(before, ids, strict=False)) if one != other), len(before))
    assert segment.tokens.tolist() == ids
    # Nothing precedes the first token, so that it is never learned.
    assert segment.targets[1:].tolist() == [index >= same for index in range(1, len(ids))]


def test_white_space_of_the_prompt_is_not_learned_if_an_answer_divides_it() -> None:
    """Here TRL begins with the white space, of which alone one token is made."""
    tokenizer = FAMILIES["bytes"]()
    assert len(tokens(tokenizer, "=\n\n")) < len(tokens(tokenizer, "=\n\n4")) - 1
    (segment,) = HfTokenizer(tokenizer).encode([completed_text("=\n\n", "4")])
    assert tokenizer.decode(segment.tokens[segment.targets]) == "4</s>"


def test_tokenizer_without_an_end_token_adds_none() -> None:
    tokenizer = HfTokenizer(fast(byte_level(), end=None))
    (segment,) = tokenizer.encode([completed_text("a\n", "4")])
    assert (len(segment.tokens), segment.targets.tolist()) == (3, [False, False, True])
