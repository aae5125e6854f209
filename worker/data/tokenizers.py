"""Tokenizers: bytes for built-in models, the tokenizer of a folder for Hugging Face models."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.formats.examples import Chat
from worker.core.errors import RefusedError
from worker.data.token_rows import Segment

Message = Mapping[str, Any]
_NO_TEMPLATE = "Use a model with a chat template, or examples of texts, such as those of format `completion`."


class LostCallsError(ValueError):
    """The chat template leaves calls of tools out, so that they would not be learned."""

    hint = (
        "Use a model whose chat template writes `tool_calls`, or give its folder such a template (chat_template.jinja)."
    )


class Tokenizer(Protocol):
    """Turns examples into segments of tokens. The methods raise ValueError for an invalid example, and
    RefusedError for a model that takes no such examples."""

    has_end_token: bool
    """Whether texts and completions end with a token from which the model learns to stop."""
    has_chat_template: bool
    """Whether conversations can be encoded."""

    def identity(self) -> str:
        """Return a text that differs for tokenizers that encode anything differently."""
        ...

    def texts(self, texts: Sequence[str]) -> list[Segment]:
        """Encode whole texts; every token is a target."""
        ...

    def completions(self, pairs: Sequence[tuple[str, str]]) -> list[Segment]:
        """Encode prompts with completions; the tokens of the completion are the targets."""
        ...

    def chat(self, chat: Chat) -> Segment:
        """Encode a conversation; the tokens of the assistant's messages that are trained are the targets."""
        ...

    def answer(self, prompt: Sequence[Any], answer: Sequence[Any], tools: Sequence[Any] | None = None) -> Segment:
        """Encode messages with the messages that answer them; the tokens of the answer are the targets."""
        ...

    def leaves_out_tools(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> bool:
        """Return whether the chat template does not write these tools."""
        ...


class ByteTokenizer:
    """UTF-8 bytes as tokens 0 to 255; byte 0 ends an example."""

    has_end_token = True
    has_chat_template = False

    def identity(self) -> str:
        return "bytes"

    def texts(self, texts: Sequence[str]) -> list[Segment]:
        return self.completions([("", text) for text in texts])

    def completions(self, pairs: Sequence[tuple[str, str]]) -> list[Segment]:
        return [_bytes_segment(prompt.encode(), completion.encode() + b"\0") for prompt, completion in pairs]

    def chat(self, chat: Chat) -> Segment:
        raise ValueError("a built-in model has no chat template; use format `completion` or an `hf` model")

    def answer(self, prompt: Sequence[Any], answer: Sequence[Any], tools: Sequence[Any] | None = None) -> Segment:
        raise ValueError("a built-in model has no chat template; use texts instead of messages, or an `hf` model")

    def leaves_out_tools(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> bool:
        return bool(tools)


class HfTokenizer:
    """A tokenizer of transformers with its special tokens, end token and chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._end: list[int] = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.has_end_token = bool(self._end)
        self.has_chat_template = bool(tokenizer.chat_template)

    def identity(self) -> str:
        import tokenizers
        import transformers

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            # Of a tokenizer in Python no complete state is known. Its folder may hold more than the tokenizer.
            state = [f"{path.name} {_hash_of(path)}" for path in _files(self._tokenizer.name_or_path)]
        else:
            state = [backend.to_str()]
        properties = [type(self._tokenizer).__name__, self._end, self._tokenizer.chat_template]
        special = sorted((name, str(token)) for name, token in self._tokenizer.special_tokens_map.items())
        versions = [tokenizers.__version__, transformers.__version__]
        return json.dumps([state, properties, special, versions])

    def texts(self, texts: Sequence[str]) -> list[Segment]:
        return [_segment([], self._strip_end_token(ids) + self._end) for ids in self._ids(texts, special=True)]

    def completions(self, pairs: Sequence[tuple[str, str]]) -> list[Segment]:
        prompts = self._ids([prompt for prompt, _ in pairs], special=True)
        answers = self._ids([completion for _, completion in pairs], special=False)
        return [_segment(self._strip_end_token(p), a + self._end) for p, a in zip(prompts, answers, strict=True)]

    def chat(self, chat: Chat) -> Segment:
        text = self._rendered(chat.messages, tools=chat.tools)
        self._check_calls(chat.messages, chat.tools, text)
        turns = [turn for turn, trained in enumerate(chat.trained) if trained]
        spans = [span for turn in turns if (span := self._answer(chat, turn, text))]
        if not spans:
            raise ValueError("the chat template renders no `assistant` message as an answer to the messages before it")
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        targets = [any(_is_within(text, token, *span) for span in spans) for token in encoded["offset_mapping"]]
        return Segment(np.array(encoded["input_ids"], dtype=np.int32), np.array(targets, dtype=np.bool_))

    def answer(self, prompt: Sequence[Any], answer: Sequence[Any], tools: Sequence[Any] | None = None) -> Segment:
        question = self._rendered(prompt, prompt=True, tools=tools)
        text = self._rendered([*prompt, *answer], tools=tools)
        self._check_calls([*prompt, *answer], tools, text)
        if not text.startswith(question):
            raise ValueError("the chat template renders the prompt in another way if an answer follows it")
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        targets = [_is_within(text, token, len(question), len(text) + 1) for token in encoded["offset_mapping"]]
        return Segment(np.array(encoded["input_ids"], dtype=np.int32), np.array(targets, dtype=np.bool_))

    def leaves_out_tools(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> bool:
        return bool(tools) and self._renders(messages, None, self._rendered(messages, tools=tools))

    def _check_calls(self, messages: Sequence[Message], tools: Sequence[Any] | None, text: str) -> None:
        """Raise LostCallsError: the text of these messages would be the same without one of their calls of tools."""
        for index, message in enumerate(messages):
            calls = list(message.get("tool_calls") or ())
            for number in range(len(calls)):
                others = calls[:number] + calls[number + 1 :]
                rest = {key: value for key, value in message.items() if key != "tool_calls"}
                changed = {**rest, "tool_calls": others} if others else rest
                if self._renders([*messages[:index], changed, *messages[index + 1 :]], tools, text):
                    raise LostCallsError(
                        "the model's chat template leaves out the "
                        f"`tool_calls` of message {index + 1}, so that they would not be learned"
                    )

    def _renders(self, messages: Sequence[Message], tools: Sequence[Any] | None, text: str) -> bool:
        """Return whether the template makes this text of messages that it may refuse."""
        try:
            return self._rendered(messages, tools=tools) == text
        except ValueError:
            return False

    def _answer(self, chat: Chat, turn: int, text: str) -> tuple[int, int] | None:
        """Return the span (start, end) in `text` of the assistant's message at this turn. None if the template renders
        earlier answers differently, as some do to omit reasoning."""
        question = self._rendered(chat.messages[:turn], prompt=True, tools=chat.tools) if turn else ""
        rendered = self._rendered(chat.messages[: turn + 1], tools=chat.tools)
        return (len(question), len(rendered)) if rendered.startswith(question) and text.startswith(rendered) else None

    def _rendered(
        self, messages: Sequence[Message], *, prompt: bool = False, tools: Sequence[Any] | None = None
    ) -> str:
        if not self._tokenizer.chat_template:
            raise RefusedError(
                "model.path: the model's tokenizer has no chat template, which messages need", _NO_TEMPLATE
            )
        try:
            options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": prompt}
            if tools is not None:
                options["tools"] = list(tools)
            return str(self._tokenizer.apply_chat_template(list(messages), **options))
        except Exception as error:  # templates raise any class, jinja's own too
            raise ValueError(f"the chat template refuses these messages: {error}") from None

    def _ids(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        ids: list[list[int]] = self._tokenizer(list(texts), add_special_tokens=special)["input_ids"]
        return ids

    def _strip_end_token(self, ids: list[int]) -> list[int]:
        """Remove the end token that some tokenizers add."""
        return ids[:-1] if self._end and ids[-1:] == self._end else ids


def _bytes_segment(context: bytes, predicted: bytes) -> Segment:
    tokens = np.frombuffer(context + predicted, dtype=np.uint8).astype(np.int32)
    return Segment(tokens, np.arange(len(tokens)) >= len(context))


def _is_within(text: str, token: tuple[int, int], start: int, end: int) -> bool:
    """Return whether a token, by its span of characters, is of the answer from `start` up to `end`. One that begins
    with the white space at the end of the prompt holds the beginning of the answer."""
    first, stop = token
    return first < end and (first >= start or (stop > start and text[first:start].isspace()))


def _files(folder: str) -> list[Path]:
    return sorted(path for path in Path(folder).iterdir() if path.is_file() and path.suffix != ".safetensors")


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _segment(context: list[int], predicted: list[int]) -> Segment:
    targets: NDArray[np.bool_] = np.zeros(len(context) + len(predicted), dtype=np.bool_)
    targets[len(context) :] = True
    return Segment(np.array(context + predicted, dtype=np.int32), targets)
