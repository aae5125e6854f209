"""From text to pieces of tokens: bytes for our own models, a folder's tokenizer for Hugging Face ones."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worker.data.token_rows import Piece

Message = Mapping[str, str]


class Tokenizer(Protocol):
    """Each method takes many examples at once. Raises ValueError, saying what is wrong, for what cannot be one."""

    def texts(self, texts: Sequence[str]) -> list[Piece]:
        """Whole texts, every token a target."""
        ...

    def completions(self, pairs: Sequence[tuple[str, str]]) -> list[Piece]:
        """Prompts and their completions; the completion is the target."""
        ...

    def chat(self, messages: Sequence[Message]) -> Piece:
        """One conversation; the assistant's answers are the targets."""
        ...


class ByteTokenizer:
    """UTF-8 bytes; byte 0 ends an example."""

    def texts(self, texts: Sequence[str]) -> list[Piece]:
        return [_piece([], [*text.encode(), 0]) for text in texts]

    def completions(self, pairs: Sequence[tuple[str, str]]) -> list[Piece]:
        return [_piece(list(prompt.encode()), [*completion.encode(), 0]) for prompt, completion in pairs]

    def chat(self, messages: Sequence[Message]) -> Piece:
        raise ValueError("a builtin model has no chat template; take `completion` or an `hf` model")


class HfTokenizer:
    """A tokenizer of transformers: its special tokens, its end token, its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._end: list[int] = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    def texts(self, texts: Sequence[str]) -> list[Piece]:
        return [_piece([], self._begun(ids) + self._end) for ids in self._ids(texts, special=True)]

    def completions(self, pairs: Sequence[tuple[str, str]]) -> list[Piece]:
        prompts = self._ids([prompt for prompt, _ in pairs], special=True)
        answers = self._ids([completion for _, completion in pairs], special=False)
        return [_piece(self._begun(p), a + self._end) for p, a in zip(prompts, answers, strict=True)]

    def chat(self, messages: Sequence[Message]) -> Piece:
        text = self._rendered(messages)
        spans = [span for turn in range(len(messages)) if (span := self._answer(messages, turn, text))]
        if not spans:
            raise ValueError("the chat template writes no message of `assistant` as an answer to what is before it")
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        targets = [any(start <= at < end for start, end in spans) for at, _ in encoded["offset_mapping"]]
        return Piece(np.array(encoded["input_ids"], dtype=np.int32), np.array(targets, dtype=np.bool_))

    def _answer(self, messages: Sequence[Message], turn: int, text: str) -> tuple[int, int] | None:
        """Where the text holds what the model is to say at this turn. None where it is not its turn, or where the
        template writes an earlier answer otherwise than it was said (some leave out its reasoning)."""
        if messages[turn]["role"] != "assistant":
            return None
        question = self._rendered(messages[:turn], asking=True) if turn else ""
        said = self._rendered(messages[: turn + 1])
        return (len(question), len(said)) if said.startswith(question) and text.startswith(said) else None

    def _rendered(self, messages: Sequence[Message], *, asking: bool = False) -> str:
        if not self._tokenizer.chat_template:
            raise ValueError("the model's tokenizer has no chat template")
        try:
            return str(
                self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=asking)
            )
        except Exception as error:  # templates raise what they like, jinja's own classes too
            raise ValueError(f"the chat template refuses these messages: {error}") from None

    def _ids(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        ids: list[list[int]] = self._tokenizer(list(texts), add_special_tokens=special)["input_ids"]
        return ids

    def _begun(self, ids: list[int]) -> list[int]:
        """Without the end token that some tokenizers add."""
        return ids[:-1] if self._end and ids[-1:] == self._end else ids


def _piece(given: list[int], predicted: list[int]) -> Piece:
    targets: NDArray[np.bool_] = np.zeros(len(given) + len(predicted), dtype=np.bool_)
    targets[len(given) :] = True
    return Piece(np.array(given + predicted, dtype=np.int32), targets)
