"""Makes a small Llama and its tokenizer, without any download."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCABULARY_SIZE = 320


def train_tokenizer(text: list[str]) -> Any:
    """Train a byte-level BPE tokenizer on the text, with an end token and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        text, trainers.BpeTrainer(vocab_size=VOCABULARY_SIZE, special_tokens=special, initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


def save_llama(
    folder: Path,
    *,
    tied: bool = False,
    layers: int = 2,
    context: int = 64,
    vocabulary: int | None = None,
    seed: int = 0,
    max_shard_size: str = "50GB",
) -> Path:
    """Save a Llama of width 64 and its tokenizer where `from_pretrained` reads them, and return the folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = train_tokenizer([Path(json.__file__).read_text()[:20000]])
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary or len(tokenizer) + 1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer.save_pretrained(folder)
    return folder


def write_lines(path: Path, lines: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def texts(count: int = 40) -> list[dict[str, str]]:
    """Return functions of the standard library as short and long texts."""
    source = Path(json.decoder.__file__).read_text()
    return [{"text": part.strip()} for part in source.split("\n\n") if part.strip()][:count]


def chats(count: int = 24) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "system", "content": "Add."},
                {"role": "user", "content": f"{n} and {n + 1}?"},
                {"role": "assistant", "content": str(2 * n + 1)},
                {"role": "user", "content": "And one more?"},
                {"role": "assistant", "content": str(2 * n + 2)},
            ]
        }
        for n in range(count)
    ]


def preferences(count: int = 24) -> list[dict[str, Any]]:
    """Return pairs of answers of different lengths to prompts of different lengths."""
    return [
        {"prompt": f"The square of {n} is ", "chosen": str(n * n), "rejected": f"{n * n + 1}, or more" * (1 + n % 2)}
        for n in range(count)
    ]


def chat_preferences(count: int = 24) -> list[dict[str, Any]]:
    """Return pairs of answers to conversations in which the assistant has answered before."""
    return [
        {
            "prompt": [*chat["messages"][:4]],
            "chosen": [chat["messages"][4]],
            "rejected": [{"role": "assistant", "content": "No idea."}],
        }
        for chat in chats(count)
    ]


def labelled_answers(count: int = 24) -> list[dict[str, Any]]:
    """Return answers with a label: for every third prompt only a desirable one, else one of each."""
    return [
        {"prompt": pair["prompt"], "completion": pair[which], "label": which == "chosen"}
        for number, pair in enumerate(preferences(count))
        for which in ("chosen", "rejected")
        if number % 3 or which == "chosen"
    ]


def completions(count: int = 24) -> list[dict[str, str]]:
    return [{"prompt": f"The square of {n} is ", "completion": str(n * n)} for n in range(count)]
