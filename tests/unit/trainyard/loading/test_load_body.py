"""Models without a head: a pooler that is absent is no problem, and other weights that are absent are an error."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from trainyard.loading.errors import LoadError
from trainyard.loading.language_models import load_body


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = BertConfig(
        vocab_size=8,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    torch.manual_seed(0)
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    return tmp_path


def test_absent_pooler_is_not_reported(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert load_body(folder, None).pooler is None
    assert "MISSING" not in "".join(capfd.readouterr())


def test_other_absent_weights_are_an_error(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["embeddings.word_embeddings.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"lacks weights .* embeddings\.word_embeddings\.weight"):
        load_body(folder, None)
