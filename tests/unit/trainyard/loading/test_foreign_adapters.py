"""Adapters that peft or transformers wrote are loaded with the outputs that they have there."""

import pytest
import torch

import trainyard
from tests.support import hf
from tests.support.images import SIZE, save_vit

TOKENS = torch.arange(24).view(2, 12) * 7 % 200


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    import peft  # noqa: F401

    return hf.save_llama(tmp_path_factory.mktemp("base") / "llama")


def written(folder, model, **options):
    """Save moved adapters of peft on a model, and return that model."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(r=2, **{"target_modules": ["q_proj", "v_proj"], **options}))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    adapted.save_pretrained(folder)
    return adapted.eval()


@torch.no_grad()
def outputs(model, **inputs):
    result = model(**(inputs or {"input_ids": TOKENS}))
    return result.logits if hasattr(result, "logits") else result.last_hidden_state


@pytest.mark.parametrize("task", ["CAUSAL_LM", "SEQ_CLS", "FEATURE_EXTRACTION"])
def test_task_of_the_adapters_chooses_the_model(tmp_path, base, task):
    import transformers

    names = {"CAUSAL_LM": "ForCausalLM", "SEQ_CLS": "ForSequenceClassification", "FEATURE_EXTRACTION": ""}
    options = {"num_labels": 3} if task == "SEQ_CLS" else {}
    loader = getattr(transformers, f"AutoModel{names[task]}")
    model = loader.from_pretrained(base, dtype=torch.float32, **options)
    if task == "SEQ_CLS":
        model.config.pad_token_id = 0
    theirs = written(tmp_path, model, task_type=task, use_dora=True)
    loaded = trainyard.load(tmp_path)
    torch.testing.assert_close(outputs(loaded.model), outputs(theirs), rtol=0, atol=2e-7)
    assert loaded.tokenizer.chat_template == hf.TEMPLATE


def test_classifier_of_images_has_the_stored_head(tmp_path):
    from transformers import AutoModelForImageClassification

    folder = save_vit(tmp_path / "vit")
    model = AutoModelForImageClassification.from_pretrained(folder, num_labels=5, ignore_mismatched_sizes=True)
    theirs = written(tmp_path / "adapter", model, modules_to_save=["classifier"])
    loaded = trainyard.load(tmp_path / "adapter")
    pixels = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(outputs(loaded.model, pixel_values=pixels), outputs(theirs, pixel_values=pixels))
    assert len(loaded.tokenizer.classes) == 5


def test_adapters_of_a_body_are_not_left_out_of_a_language_model(tmp_path, base):
    from transformers import AutoModel

    written(tmp_path, AutoModel.from_pretrained(base))
    with pytest.raises(trainyard.LoadError, match="are of another model than LlamaForCausalLM"):
        trainyard.load(tmp_path)


def test_adapters_of_another_task_are_refused(tmp_path, base):
    from transformers import AutoModelForTokenClassification

    written(tmp_path, AutoModelForTokenClassification.from_pretrained(base), task_type="TOKEN_CLS")
    with pytest.raises(trainyard.LoadError, match="are for task TOKEN_CLS"):
        trainyard.load(tmp_path)
