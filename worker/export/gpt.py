"""The builtin `gpt` as a Hugging Face model of the class `GPT2LMHeadModel`, which computes the same."""

from collections.abc import Mapping
from typing import Any

import torch

from trainyard.contract.spec.decoders import GptModel
from worker.export.byte_tokenizer import END_TOKEN

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


def gpt_config(model: GptModel, dtype: str) -> dict[str, Any]:
    """Return the content of config.json."""
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
