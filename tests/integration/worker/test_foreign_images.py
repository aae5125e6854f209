"""The Trainer of transformers on images beside our runs, on the same files: all weights, and an adapter of peft."""

import pytest
import torch

from tests.integration.worker.foreign_trainers import (
    ADAMW,
    BATCH,
    STEPS,
    arguments,
    assert_equal_losses,
    assert_equal_values,
    losses_of,
)
from tests.integration.worker.harness import run_layout
from tests.support.images import digits, save_vit, write_parquet

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

KINDS = ("whole", "adapter")


class Cases:
    def __init__(self, folder):
        self.folder = folder
        images = digits(0, 54)
        names = sorted({name for _, name in images})
        self.table = write_parquet(folder / "images.parquet", images)
        self.save_model(names)
        self.save_adapter()

    def save_model(self, names):
        """Save a model that knows the classes, with its image processor."""
        from transformers import AutoImageProcessor

        save_vit(self.folder / "unnamed", classes=len(names))
        model = self.load("unnamed")
        model.config.id2label, model.config.label2id = dict(enumerate(names)), {name: n for n, name in enumerate(names)}
        model.save_pretrained(self.folder / "model")
        AutoImageProcessor.from_pretrained(self.folder / "unnamed").save_pretrained(self.folder / "model")

    def save_adapter(self):
        """Save an adapter of peft as after a training, with the classifier that was trained beside it."""
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(6)
        targets, whole = ["q_proj", "v_proj"], ["classifier"]
        config = LoraConfig(r=4, lora_alpha=8, target_modules=targets, modules_to_save=whole)
        model = get_peft_model(self.load("model"), config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter), alpha=0.05)
        model.save_pretrained(self.folder / "adapter")

    def load(self, name):
        from transformers import AutoModelForImageClassification

        return AutoModelForImageClassification.from_pretrained(self.folder / name, dtype=torch.float32)

    def continued(self, adapter):
        from peft import PeftModel

        return PeftModel.from_pretrained(self.load("model"), adapter, is_trainable=True)

    def rows(self):
        """Return the images as the model's processor makes them."""
        from datasets import load_dataset
        from transformers import AutoImageProcessor

        processor = AutoImageProcessor.from_pretrained(self.folder / "model")
        rows = load_dataset("parquet", data_files=str(self.table), split="train", cache_dir=str(self.folder / "cache"))

        def prepared(batch):
            pixels = [processor(images=image.convert("RGB"))["pixel_values"][0] for image in batch["image"]]
            return {"pixel_values": pixels, "labels": batch["label"]}

        return rows.with_transform(prepared)

    def own(self):
        spec = {
            "version": 1,
            "task": "image_classification",
            "precision": "fp32",
            "strategy": "single",
            "model": {"source": "hf", "path": str(self.folder / "model")},
            "data": {"source": "images", "path": str(self.table), "shuffle": False},
            "steps": STEPS,
            "batch": {"size": BATCH, "micro_size": 4, "last": "drop"},
            "optimizer": ADAMW,
            "log": {"every_steps": 1},
        }
        lora = {"alpha": 8, "targets": ["q_proj", "v_proj"], "adapter": str(self.folder / "adapter")}
        cases = {"whole": spec, "adapter": spec | {"lora_rank": 4, "lora": lora}}
        return {name: {"spec": one, "export": str(self.folder / f"own {name}")} for name, one in cases.items()}


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        yield Cases(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def own(cases):
    return run_layout(1, cases.own(), cases.folder / "runs", seconds=300)


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_those_of_the_trainer(cases, own, kind):
    from transformers import Trainer, TrainingArguments

    losses, model = losses_of(
        Trainer,
        model=cases.load("model") if kind == "whole" else cases.continued(cases.folder / "adapter"),
        args=arguments(cases.folder, TrainingArguments, remove_unused_columns=False),
        train_dataset=cases.rows(),
    )
    # Images differ more than they are learned in a few steps.
    assert_equal_losses(own, kind, losses, falling=False)
    if kind == "whole":
        assert_equal_values(own, kind, model)
    exported = cases.load("own whole") if kind == "whole" else cases.continued(cases.folder / "own adapter")
    pixels = torch.stack([torch.as_tensor(row["pixel_values"]) for row in cases.rows().select(range(8))])
    with torch.no_grad():
        expected, actual = (one.eval()(pixel_values=pixels).logits for one in (model, exported))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
