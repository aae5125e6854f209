"""Writes how an embedding model makes a vector into its export, for Trainyard and for sentence-transformers."""

import json
from pathlib import Path
from typing import Any

from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.exported import TextVectors
from worker.tasks.causal_lm import row_length
from worker.tasks.hf_model import context_of

_MODULES = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
_POOLING = {"mean": "mean_tokens", "first": "cls_token", "last": "lasttoken"}


def text_vectors_of(spec: TrainingSpec, base: Path | None) -> TextVectors | None:
    """Return how the model of a spec makes a vector of a text; None for another task. `base`: the model's folder."""
    if not spec.task_kind.makes_vectors or base is None or not isinstance(spec.data, TextData):
        return None
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    length = row_length(spec.data.max_length, context_of(config))
    return TextVectors(pooling=spec.embedding.pooling, max_length=length, width=config.hidden_size)


def save_modules(folder: Path, vectors: TextVectors) -> None:
    """Write the files from which sentence-transformers makes the same vectors."""
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(_MODULES)
    ]
    modes = {f"pooling_mode_{end}": name == vectors.pooling for name, end in _POOLING.items()}
    files: dict[str, Any] = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": vectors.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
        "1_Pooling/config.json": {"word_embedding_dimension": vectors.width, **modes},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2))
