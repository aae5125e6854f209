"""Tokenizers: bytes for built-in models, the tokenizer of a folder for Hugging Face models."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainyard.contract.formats.examples import Chat
from trainyard.loading.turn_end import turn_end
from worker.core.errors import RefusedError
from worker.data.chat_template import EMPTY, ChatTemplate, MarkedText, Span
from worker.data.token_rows import Segment


class Tokenizer(Protocol):
    """Turns examples into segments of tokens. The methods raise ValueError for an invalid example, and
    RefusedError for a model that takes no such examples."""

    end_text: str
    """The token that ends texts and completions, from which the model learns to stop; empty if there is none."""
    special_tokens: frozenset[int]
    """The special tokens."""
    template: ChatTemplate | None
    """The chat template, if conversations can be encoded."""

    @property
    def turn_end(self) -> str | None:
        """The special token that ends an answer in a conversation; None if none does."""
        ...

    def identity(self) -> str:
        """Return a text that differs for tokenizers that encode anything differently."""
        ...

    def encode(self, texts: Sequence[MarkedText]) -> list[Segment]:
        """Return the tokens of texts. The tokens of the learned spans are targets, and so is the end token that follows
        a text that no template wrote."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, including special tokens."""
        ...

    def conversation(self, chat: Chat) -> MarkedText:
        """Return the text of a conversation, whose learned spans are the answers that are trained."""
        ...

    def answer(self, prompt: Sequence[Any], answer: Sequence[Any], tools: Sequence[Any] | None = None) -> MarkedText:
        """Return the text of messages with the messages that answer them, which are learned."""
        ...

    def leaves_out_tools(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> bool:
        """Return whether the chat template does not write these tools."""
        ...

    def unwritten_fields(
        self, messages: Sequence[Any], tools: Sequence[Any] | None, text: str, written: set[str]
    ) -> set[str]:
        """Return the fields of messages that the chat template does not write in their text; see `ChatTemplate`."""
        ...


def whole_text(text: str) -> MarkedText:
    """Return a text that is learned from beginning to end."""
    return MarkedText(text, [(0, len(text))], counts=Counter({EMPTY: 1} if not text.strip() else {}))


def completed_text(prompt: str, completion: str) -> MarkedText:
    """Return a prompt with the completion that is learned."""
    counts = Counter({EMPTY: 1} if not completion.strip() else {})
    return MarkedText(prompt + completion, [(len(prompt), len(prompt) + len(completion))], counts=counts)


class ByteTokenizer:
    """UTF-8 bytes as tokens 0 to 255; byte 0 ends an example."""

    end_text = "\0"
    special_tokens = frozenset({0})
    template: ChatTemplate | None = None
    turn_end: str | None = None

    def identity(self) -> str:
        return "bytes"

    def encode(self, texts: Sequence[MarkedText]) -> list[Segment]:
        return [_bytes_segment(one) for one in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def conversation(self, chat: Chat) -> MarkedText:
        raise ValueError("a built-in model has no chat template; use format `completion` or an `hf` model")

    def answer(self, prompt: Sequence[Any], answer: Sequence[Any], tools: Sequence[Any] | None = None) -> MarkedText:
        raise ValueError("a built-in model has no chat template; use texts instead of messages, or an `hf` model")

    def leaves_out_tools(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> bool:
        return bool(tools)

    def unwritten_fields(
        self, messages: Sequence[Any], tools: Sequence[Any] | None, text: str, written: set[str]
    ) -> set[str]:
        return set()


class HfTokenizer:
    """A tokenizer of transformers with its special tokens, end token and chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._start, added = _added_tokens(tokenizer)
        end = tokenizer.eos_token_id
        self._end = [*added, *([] if end is None or end in added else [end])]
        self.end_text = "" if end is None else str(tokenizer.eos_token)
        self.special_tokens = frozenset(tokenizer.all_special_ids)
        self.template = ChatTemplate(tokenizer) if tokenizer.chat_template else None

    @cached_property
    def turn_end(self) -> str | None:
        """The special token that ends an answer in a conversation; None if none does."""
        end = turn_end(self._tokenizer)
        return None if end is None else str(self._tokenizer.convert_ids_to_tokens(end))

    def identity(self) -> str:
        import tokenizers
        import transformers

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            # No complete state of a tokenizer in Python is known. Its folder may hold more than the tokenizer.
            state = [f"{path.name} {_hash_of(path)}" for path in _files(self._tokenizer.name_or_path)]
        else:
            state = [backend.to_str()]
        properties = [type(self._tokenizer).__name__, self._end, self._tokenizer.chat_template]
        special = sorted((name, str(token)) for name, token in self._tokenizer.special_tokens_map.items())
        versions = [tokenizers.__version__, transformers.__version__]
        return json.dumps([state, properties, special, versions])

    def encode(self, texts: Sequence[MarkedText]) -> list[Segment]:
        if not texts:
            return []
        plain = [one.text for one in texts]
        # The characters of tokens cost as much time as the tokens, and are needed where a part is learned.
        partly = self._tokenizer.is_fast and any(one.spans != [(0, len(one.text))] for one in texts)
        encoded = self._tokenizer(plain, add_special_tokens=False, return_offsets_mapping=partly)
        ids = encoded["input_ids"]
        if partly:
            targets = [learned_tokens(one, spans) for one, spans in zip(texts, encoded["offset_mapping"], strict=True)]
        else:
            targets = [self._targets_by_prefixes(one, tokens) for one, tokens in zip(texts, ids, strict=True)]
        return [self._segment(one, *pair) for one, *pair in zip(texts, ids, targets, strict=True)]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    def conversation(self, chat: Chat) -> MarkedText:
        return self._template.conversation(chat)

    def answer(self, prompt: Sequence[Any], answer: Sequence[Any], tools: Sequence[Any] | None = None) -> MarkedText:
        return self._template.answer(prompt, answer, tools)

    def leaves_out_tools(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> bool:
        return self._template.leaves_out_tools(messages, tools)

    def unwritten_fields(
        self, messages: Sequence[Any], tools: Sequence[Any] | None, text: str, written: set[str]
    ) -> set[str]:
        return self._template.unwritten_fields(messages, tools, text, written)

    @property
    def _template(self) -> ChatTemplate:
        if self.template is None:
            problem = "model.path: the model's tokenizer has no chat template, which messages need"
            hint = "Use a model with a chat template, or examples of texts, such as those of format `completion`."
            raise RefusedError(problem, hint)
        return self.template

    def _segment(self, marked: MarkedText, ids: list[int], targets: list[bool]) -> Segment:
        """Return the tokens of a text, with the special tokens that the tokenizer adds and the text lacks."""
        if marked.marked_tokens is not None:
            targets = [both[0] and both[1] for both in zip(targets, marked.marked_tokens, strict=True)]
        if not marked.is_rendered:
            if ids[: len(self._start)] != self._start:
                # A text without a prompt is learned from its first token on.
                ids, targets = self._start + ids, [marked.spans[0][0] == 0] * len(self._start) + targets
            if self._end and not (ids[-len(self._end) :] == self._end and targets[-1]):
                ids, targets = ids + self._end, targets + [True] * len(self._end)
        return Segment(np.array(ids, dtype=np.int32), np.array(targets, dtype=np.bool_))

    def _targets_by_prefixes(self, marked: MarkedText, ids: list[int]) -> list[bool]:
        """Return which tokens are learned, for a tokenizer that does not tell the characters of a token.

        Raises:
            ValueError: It is not known where an answer begins.
        """
        targets = [False] * len(ids)
        for start, end in marked.spans:
            first, _ = self._token_at(marked.text, start, ids)
            stop, is_shared = self._token_at(marked.text, end, ids)
            stop += is_shared
            targets[first:stop] = [True] * (stop - first)
        return targets

    def _token_at(self, text: str, position: int, ids: list[int]) -> tuple[int, bool]:
        """Return the index of the token with the character at a position, and whether it also holds earlier characters.

        It is the first token that differs if the text before the position is tokenised alone.
        """
        if position in (0, len(text)):
            return (0 if position == 0 else len(ids)), False
        before = self._tokenizer(text[:position], add_special_tokens=False)["input_ids"]
        pairs = zip(before, ids, strict=False)
        same = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(before), len(ids)))
        if same == len(before):
            return same, False
        rest, shared = (self._tokenizer.decode(some).strip() for some in (before[same:], ids[same : same + 1]))
        if not shared.startswith(rest):
            raise ValueError(
                "the tokenizer, which does not tell the characters of its tokens, divides the prompt in another way if "
                "an answer follows it, so that the first token of the answer is not known"
            )
        return same, True


def learned_tokens(marked: MarkedText, offsets: Sequence[Span]) -> list[bool]:
    """Return which tokens of a text are learned, by their spans of characters.

    A token with a character of an answer is learned; the first may also hold the end of the prompt.
    """
    if not offsets:
        return []
    first, stop = np.array(offsets, dtype=np.int64).T
    previous = np.concatenate([[0], np.maximum.accumulate(stop)[:-1]])
    begin = first.copy()
    # Some tokenizers leave white space out of the spans of the tokens that hold it.
    for index in np.flatnonzero(previous < first):
        if marked.text[previous[index] : first[index]].isspace():
            begin[index] = previous[index]
    learned = np.zeros(len(first), dtype=np.bool_)
    for start, end in marked.spans:
        learned |= (np.where(stop > first, first, begin) < end) & ((stop > start) | (begin >= start))
    return learned.tolist()


def _added_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after each text."""
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    whole = list(tokenizer("a")["input_ids"])
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


def _bytes_segment(marked: MarkedText) -> Segment:
    ((start, _),) = marked.spans
    context, predicted = marked.text[:start].encode(), marked.text[start:].encode() + b"\0"
    tokens = np.frombuffer(context + predicted, dtype=np.uint8).astype(np.int32)
    return Segment(tokens, np.arange(len(tokens)) >= len(context))


def _files(folder: str) -> list[Path]:
    return sorted(path for path in Path(folder).iterdir() if path.is_file() and path.suffix != ".safetensors")


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
