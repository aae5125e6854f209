"""Prompts as tokens, and generated tokens as text."""

from collections.abc import Sequence
from typing import Any, Protocol

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.spec.decoders import BuiltinDecoder
from trainyard.contract.spec.sections import HfModel
from trainyard.loading.turn_end import end_tokens
from worker.core.errors import RefusedError


class TextCodec(Protocol):
    """The tokenizer of a model, for generation."""

    context: int | None
    """The model's maximum number of tokens; None if it has no limit."""
    ends: frozenset[int]
    """Tokens that end a text."""

    def encode(self, prompt: str, *, chat: bool) -> list[int]:
        """Return the tokens of a prompt; with `chat` as a user's message, followed by the beginning of the answer.

        Raises:
            RefusedError: The model has no chat template.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of generated tokens."""
        ...


class ByteCodec:
    """Tokens 0 to 255 are bytes of UTF-8, and byte 0 ends a text."""

    ends = frozenset({0})

    def __init__(self, context: int) -> None:
        self.context: int | None = context

    def encode(self, prompt: str, *, chat: bool) -> list[int]:
        return list(prompt.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        # A model may have more tokens than there are bytes.
        return bytes(token if token < 256 else ord("?") for token in tokens).decode(errors="replace")


class HfCodec:
    """The tokenizer of a folder."""

    def __init__(self, tokenizer: Any, config: Any, context: int | None) -> None:
        self._tokenizer = tokenizer
        self.context = context
        self.ends = frozenset(end_tokens(tokenizer, getattr(config.get_text_config(), "eos_token_id", None)))

    def encode(self, prompt: str, *, chat: bool) -> list[int]:
        if not chat:
            ids: list[int] = self._tokenizer(prompt)["input_ids"]
            # Some tokenizers add their end token to every text.
            return ids[:-1] if len(ids) > 1 and ids[-1] == self._tokenizer.eos_token_id else ids
        if not self._tokenizer.chat_template:
            raise RefusedError(
                "evaluation.samples.chat: the model's tokenizer has no chat template", "Set it to false."
            )
        messages = [{"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        encoded: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return encoded

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def text_codec(model: BuiltinDecoder | HfModel, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> TextCodec:
    """Return the codec of a model.

    Raises:
        RefusedError: The folder of the model has no tokenizer that can be loaded.
    """
    if isinstance(model, HfModel):
        from worker.tasks.hf_model import HfFolder

        folder = HfFolder(model.path, roots)
        return HfCodec(folder.tokenizer, folder.config, folder.context)
    return ByteCodec(model.context)
