"""Writes a tokenizer of bytes, and how to generate with it, as transformers reads them."""

import json
from pathlib import Path
from typing import Any

END_TOKEN = 0
"""The byte that ends an example; see `worker.data.tokenizers.ByteTokenizer`."""


def save_byte_tokenizer(folder: Path, context: int) -> None:
    """Write the tokenizer of a builtin language model, and that generated text ends with the end token."""
    (folder / "tokenizer.json").write_text(json.dumps(_byte_tokenizer(), ensure_ascii=False))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    generation = {"eos_token_id": END_TOKEN, "pad_token_id": END_TOKEN}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))


def _byte_tokenizer() -> dict[str, Any]:
    """Return a tokenizer.json whose tokens are UTF-8 bytes.

    It names no end token: the name would be a character, which texts may contain.
    """
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": pieces,
        "post_processor": None,
        "decoder": pieces,
        "model": {"type": "BPE", "vocab": _byte_names(), "merges": []},
    }


def _byte_names() -> dict[str, int]:
    """Return the byte of each character that `ByteLevel` of the library tokenizers uses for it: printable bytes are
    their own character, the others follow from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte if byte in printable else 0x100 + others.index(byte)): byte for byte in range(256)}
