"""Continues a text with a language model of transformers, token by token."""

from collections.abc import Callable
from typing import Any

import torch

from trainyard.contract.wire.generation import GenerationSettings, GenerationUpdate
from trainyard.loading.errors import LoadError
from trainyard.loading.turn_end import end_tokens

_UNFINISHED = "\ufffd"
"""A tokenizer decodes the first bytes of a character to this sign, or to such a sign for each byte."""
_MAX_UNFINISHED = 3
"""Maximum number of bytes of an incomplete character."""


def generate_text(
    model: Any, tokenizer: Any, prompt: str, settings: GenerationSettings, on_text: Callable[[str], None]
) -> GenerationUpdate:
    """Continue a prompt, and return the whole continuation, without special tokens.

    Args:
        on_text: Called with each chunk of the continuation as soon as it is known.

    Raises:
        LoadError: The model does not continue texts, the prompt is empty or too long, or the tokenizer has no template
            for a requested chat.
    """
    if not hasattr(model, "generate"):
        raise LoadError("the model does not continue texts; call what trainyard.load returns")
    tokens = _encode(tokenizer, prompt, chat=settings.chat)
    context = _context(model)
    if not tokens:
        raise LoadError("the prompt has no token; pass some text to continue")
    if context is not None and len(tokens) >= context:
        raise LoadError(f"the prompt has {len(tokens)} tokens, and the context of the model is {context}")
    limit = settings.max_new_tokens if context is None else min(settings.max_new_tokens, context - len(tokens))
    if settings.seed is not None:
        torch.manual_seed(settings.seed)
    ends = end_tokens(tokenizer, model.generation_config.eos_token_id)
    stream = _TextStream(tokenizer, frozenset(ends), on_text)
    ids = torch.tensor([tokens], device=model.device)
    with torch.inference_mode():
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=limit,
            streamer=stream,
            eos_token_id=ends or None,
            **_sampling(settings.temperature),
        )
    stopped = bool(stream.tokens) and stream.tokens[-1] in ends
    return GenerationUpdate(
        phase="done",
        text=stream.text,
        prompt_tokens=len(tokens),
        new_tokens=len(stream.tokens),
        finish="stop" if stopped else "length",
    )


class _TextStream:
    """Receives tokens from `generate`, and passes on the text that no later token changes."""

    def __init__(self, tokenizer: Any, ends: frozenset[int], on_text: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._on_text = on_text
        self._has_prompt = False
        self._sent = ""
        self.tokens: list[int] = []

    @property
    def text(self) -> str:
        """The text of all tokens, without the end token."""
        retained = self.tokens[:-1] if self.tokens and self.tokens[-1] in self._ends else self.tokens
        return str(self._tokenizer.decode(retained, skip_special_tokens=True)) if retained else ""

    def put(self, value: torch.Tensor) -> None:
        if not self._has_prompt:
            self._has_prompt = True
            return
        self.tokens += value.reshape(-1).tolist()
        text = self.text
        for _ in range(_MAX_UNFINISHED):
            text = text.removesuffix(_UNFINISHED)
        self._send(text)

    def end(self) -> None:
        self._send(self.text)

    def _send(self, text: str) -> None:
        if text.startswith(self._sent) and (chunk := text[len(self._sent) :]):
            self._sent = text
            self._on_text(chunk)


def _encode(tokenizer: Any, prompt: str, *, chat: bool) -> list[int]:
    """Return the tokens of the prompt as in the training: without the end token that some tokenizers add."""
    if chat:
        if not tokenizer.chat_template:
            raise LoadError("the tokenizer of this model has no chat template; leave out --chat")
        messages = [{"role": "user", "content": prompt}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])
    tokens = list(tokenizer(prompt)["input_ids"])
    ends_itself = tokenizer.eos_token_id is not None and tokens[-1:] == [tokenizer.eos_token_id]
    return tokens[:-1] if ends_itself and len(tokens) > 1 else tokens


def _context(model: Any) -> int | None:
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None


def _sampling(temperature: float) -> dict[str, Any]:
    """Return the arguments of `generate`. Without sampling, arguments that have no effect are reset, since transformers
    warns of them."""
    if temperature > 0:
        return {"do_sample": True, "temperature": temperature}
    return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
