"""The builtin `llama` as a Hugging Face model of the class `LlamaForCausalLM`, which has the same names."""

from typing import Any

from trainyard.contract.spec.decoders import LlamaModel
from worker.export.byte_tokenizer import END_TOKEN


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
