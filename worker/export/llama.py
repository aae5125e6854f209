"""Writes the builtin `llama` as a Hugging Face model of the class `LlamaForCausalLM`, with a tokenizer of bytes."""

import json
from pathlib import Path
from typing import Any

from trainyard.contract.spec.decoders import LlamaModel

END_TOKEN = 0
"""The byte that ends an example; see `worker.data.tokenizers.ByteTokenizer`."""


def save_llama_files(folder: Path, model: LlamaModel, dtype: str = "float32") -> None:
    """Write everything but the weights."""
    config = json.dumps(llama_config(model, dtype), indent=2)
    (folder / "config.json").write_text(config)
    (folder / "tokenizer.json").write_text(json.dumps(_byte_tokenizer(), ensure_ascii=False))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.context}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def llama_config(model: LlamaModel, dtype: str) -> dict[str, Any]:
    """Return the content of config.json. `rope_theta` is for releases of transformers before 5."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab,
        "hidden_size": model.width,
        "intermediate_size": model.feed_forward_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.grouped_heads,
        "head_dim": model.width // model.heads,
        "hidden_act": "silu",
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "rope_theta": model.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": model.tied,
        "bos_token_id": None,
        "eos_token_id": END_TOKEN,
        "pad_token_id": None,
        "dtype": dtype,
    }


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
