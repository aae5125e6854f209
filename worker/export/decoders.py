"""The builtin language models as models of transformers that compute the same, with a tokenizer of bytes: `gpt` as
`GPT2LMHeadModel`, `llama` as `LlamaForCausalLM`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainyard.contract.spec.decoders import GptModel, LlamaModel

_TOP = {
    "embedding.weight": "transformer.wte.weight",
    "positions.weight": "transformer.wpe.weight",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "head.weight": "lm_head.weight",
}
_BLOCK = {
    "norm_attention": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "norm_feed_forward": "ln_2",
    "feed_forward.0": "mlp.c_fc",
    "feed_forward.2": "mlp.c_proj",
}
END_TOKEN = 0
"""The byte that ends an example; see `worker.data.tokenizers.ByteTokenizer`."""


def gpt_config(model: GptModel, dtype: str) -> dict[str, Any]:
    """Return the content of config.json of a `gpt`."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocab,
        "n_positions": model.context,
        "n_embd": model.width,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": 4 * model.width,
        "activation_function": "gelu",
        "attn_pdrop": model.dropout,
        "resid_pdrop": model.dropout,
        "embd_pdrop": 0.0,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": model.tied,
        "bos_token_id": None,
        "eos_token_id": END_TOKEN,
        "pad_token_id": None,
        "dtype": dtype,
    }


def gpt2_weights(weights: Mapping[str, torch.Tensor], model: GptModel) -> dict[str, torch.Tensor]:
    """Return the weights under GPT-2's names. Its linear layers hold their weights transposed, and the layer of
    queries, keys and values has a bias, which is zero here."""
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if name in _TOP:
            renamed[_TOP[name]] = tensor
            continue
        _, number, *layer, kind = name.split(".")
        target = _BLOCK[".".join(layer)]
        linear = kind == "weight" and not target.startswith("ln_")
        renamed[f"transformer.h.{number}.{target}.{kind}"] = tensor.t().contiguous() if linear else tensor
    dtype = weights["embedding.weight"].dtype
    for block in range(model.layers):
        renamed[f"transformer.h.{block}.attn.c_attn.bias"] = torch.zeros(3 * model.width, dtype=dtype)
    return renamed


def llama_config(model: LlamaModel, dtype: str) -> dict[str, Any]:
    """Return the content of config.json of a `llama`, whose weights need no new names.

    `rope_theta` is for releases of transformers before 5."""
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
