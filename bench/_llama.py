"""Makes a Llama with random weights, a tokenizer and a text in a folder, without any download."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.data.builtin import load_stdlib


@dataclass(frozen=True)
class Size:
    """The size of a model and of its training text."""

    name: str
    hidden: int
    layers: int
    feed_forward: int
    heads: int
    key_value_heads: int
    vocabulary: int
    length: int
    """Tokens in an example."""
    text: int
    """Bytes of text."""


LARGE = Size("Llama, 1.1 B parameters", 2048, 16, 8192, 32, 8, 32768, length=2048, text=8 * 2**20)
TINY = Size("tiny Llama", 64, 2, 128, 4, 2, 512, length=64, text=2**16)


def max_micro_batch(memory_bytes: int) -> int:
    """Return how many examples of `LARGE` fit: 18 GB for parameters, gradients and moments, and 6 GB per example."""
    return max(1, min(8, int((memory_bytes / 1e9 - 18) / 6)))


def make(folder: Path, size: Size, batch: int) -> dict[str, Any]:
    """Write the model, tokenizer and text; return a spec document that trains on them."""
    text = bytes(load_stdlib(size.text).numpy()).decode(errors="replace")
    # The text is one line, so that all examples but the last have the same length.
    (folder / "text.jsonl").write_text(json.dumps({"text": text}))
    _save_tokenizer(folder, text, size.vocabulary)
    _save_model(folder, size)
    return {
        "task": "causal_lm",
        "precision": "bf16",
        "strategy": "single",
        "model": {"source": "hf", "path": str(folder)},
        # One token more than the sequence: the first token is no target and the last one no input.
        "data": {
            "source": "jsonl",
            "path": str(folder / "text.jsonl"),
            "format": "text",
            "packing": False,
            "max_length": size.length + 1,
        },
        "batch": {"size": batch, "micro_size": batch, "last": "drop"},
        "optimizer": {"name": "adamw", "lr": 0.001, "clip_norm": 1.0},
        "log": {"every_steps": 10},
        "checkpoint": {"export": False},
    }


def _save_tokenizer(folder: Path, text: str, vocabulary: int) -> None:
    """Train and save a byte-level BPE tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>").save_pretrained(folder)


def _save_model(folder: Path, size: Size) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        max_position_embeddings=2 * size.length,
        tie_word_embeddings=False,
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
