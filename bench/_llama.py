"""A Llama with random weights, its tokenizer and its text, made in a folder: nothing is downloaded."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.data.builtin import load_stdlib


@dataclass(frozen=True)
class Size:
    """Of a model and of what it is trained on."""

    name: str
    hidden: int
    layers: int
    feed_forward: int
    heads: int
    key_value_heads: int
    vocabulary: int
    length: int
    """Tokens of an example."""
    text: int
    """Bytes."""


LARGE = Size("Llama, 1.1 B parameters", 2048, 16, 8192, 32, 8, 32768, length=2048, text=8 * 2**20)
TINY = Size("tiny Llama", 64, 2, 128, 4, 2, 512, length=64, text=2**16)


def examples_that_fit(memory_bytes: int) -> int:
    """Examples of `LARGE` in a micro-batch: 18 GB are the parameters', gradients' and moments', 6 GB each example's."""
    return max(1, min(8, int((memory_bytes / 1e9 - 18) / 6)))


def make(folder: Path, size: Size, batch: int) -> dict[str, Any]:
    """Write model, tokenizer and text; the spec that trains on them."""
    text = bytes(load_stdlib(size.text).numpy()).decode(errors="replace")
    # One line: it is cut into examples of one length, and only the last one is shorter.
    (folder / "text.jsonl").write_text(json.dumps({"text": text}))
    _save_tokenizer(folder, text, size.vocabulary)
    _save_model(folder, size)
    return {
        "task": "causal_lm",
        "precision": "bf16",
        "strategy": "single",
        "model": {"source": "hf", "path": str(folder)},
        # Of a row, the first token is no target and the last one no input.
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
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    pairs.train_from_iterator([text], trainer)
    PreTrainedTokenizerFast(tokenizer_object=pairs, eos_token="<|end|>").save_pretrained(folder)


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
