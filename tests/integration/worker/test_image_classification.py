"""Classification of images: the updates of a bare loop of transformers, on any layout, and an export that loads."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from transformers import AutoImageProcessor, AutoModelForImageClassification

import trainyard
from tests.integration.worker.harness import examples_of_steps, run_layout, series
from tests.support.checkpoints import convert_checkpoint, copied_without_classes
from tests.support.images import SIZE, digits, save_vit, write_folder, write_parquet
from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.sections import HfModel
from worker.core.errors import RefusedError
from worker.core.random_state import seed_generators
from worker.tasks.image_classification import build_image_classification

pytestmark = pytest.mark.timeout(400)
"""The first test waits for all runs."""

STEPS, BATCH = 6, 8
"""An epoch has three whole batches and one of four images."""
VARIANTS = {"ddp": {"strategy": "ddp"}, "fsdp": {"strategy": "fsdp"}, "loaders": {"batch": {"loaders": 2}}}
RANDOM = {"crop": 0.5, "flip": True}


class Cases:
    def __init__(self, folder):
        self.folder = folder
        save_vit(folder / "model")
        self.train = sorted(digits(0, 28), key=lambda pair: pair[1])
        self.held_out = digits(100, 111)
        write_folder(folder / "train", self.train)
        write_folder(folder / "held_out", self.held_out)
        write_parquet(folder / "train.parquet", self.train)

    def spec(self, data=None, batch=None, **changes):
        return {
            "version": 1,
            "task": "image_classification",
            "precision": "fp32",
            "seed": 5,
            "model": {"source": "hf", "path": str(self.folder / "model")},
            "data": {
                "source": "images",
                "path": str(self.folder / "train"),
                "eval_path": str(self.folder / "held_out"),
                **(data or {}),
            },
            "steps": STEPS,
            "batch": {"size": BATCH, "micro_size": 3, **(batch or {})},
            "optimizer": {"name": "adamw", "lr": 0.003, "clip_norm": None},
            "evaluation": {"every_steps": 3},
            "log": {"every_steps": 1},
            **changes,
        }

    def mixture(self, **changes):
        """Return the spec of a run whose second source is passed over several times in an epoch."""
        sources = [
            {"path": str(self.folder / "train.parquet"), "name": "some"},
            {"path": str(self.folder / "held_out"), "weight": 3},
        ]
        data = {"path": None, "eval_path": None, "sources": sources, "eval_fraction": 0.25, **RANDOM}
        return self.spec(data, **changes)

    def on(self, world):
        """Return runs on plain images, and on augmented ones, which differ from epoch to epoch."""
        if world == 1:
            table = {"path": str(self.folder / "train.parquet")}
            return {
                "alone": {"spec": self.spec(), "export": str(self.folder / "export"), "run": "alone"},
                "table": {"spec": self.spec(table)},
                "random": {"spec": self.spec(RANDOM)},
                "mixture": {"spec": self.mixture()},
            }
        if world == 3:
            return {"mixture": {"spec": self.mixture(strategy="ddp")}}
        cases = {name: {"spec": self.spec(RANDOM, **changes)} for name, changes in VARIANTS.items()}
        cases["first"] = {"spec": self.spec(RANDOM, strategy="fsdp"), "run": "resumed", "until": 5}
        cases["rest"] = {"spec": self.spec(RANDOM, strategy="fsdp"), "run": "resumed"}
        cases["mixture"] = {"spec": self.mixture(strategy="fsdp")}
        cases["first of mixture"] = {"spec": self.mixture(strategy="fsdp"), "run": "resumed mixture", "until": 4}
        cases["rest of mixture"] = {"spec": self.mixture(strategy="fsdp"), "run": "resumed mixture"}
        return cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def layouts(cases):
    return {world: run_layout(world, cases.on(world), cases.folder / str(world), seconds=300) for world in (1, 2, 3)}


def test_updates_equal_those_of_a_bare_loop(layouts, cases):
    processor = AutoImageProcessor.from_pretrained(cases.folder / "model", backend="pil")
    classes = sorted({label for _, label in cases.train})
    seed_generators(5)
    model = AutoModelForImageClassification.from_pretrained(
        cases.folder / "model", num_labels=len(classes), ignore_mismatched_sizes=True
    )
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.0)
    files = sorted((cases.folder / "train").glob("*/*.png"))
    for step, chosen in layouts[1][0]["alone"]["examples"].items():
        pictures = [Image.open(files[index]).convert("RGB") for index in chosen]
        pixels = processor(images=pictures, return_tensors="pt")["pixel_values"]
        labels = torch.tensor([classes.index(files[index].parent.name) for index in chosen])
        loss = functional.cross_entropy(model(pixel_values=pixels).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert series(layouts[1], "alone")[int(step)] == pytest.approx(loss.item(), rel=1e-4), step
    trained = layouts[1][0]["alone"]["parameters"]
    for name, parameter in model.named_parameters():
        expected, actual = parameter.detach().flatten(), torch.tensor(trained[name])
        assert torch.linalg.norm(actual - expected) <= 1e-3 * torch.linalg.norm(expected), name


def test_folder_and_table_give_equal_losses(layouts):
    for key in ("train/loss", "eval/loss", "eval/accuracy"):
        assert series(layouts[1], "table", key) == series(layouts[1], "alone", key)


def test_random_changes_change_the_losses(layouts):
    assert series(layouts[1], "random")[1] != series(layouts[1], "alone")[1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_layout_makes_the_same_updates_and_metrics(layouts, variant):
    for key in ("train/loss", "train/accuracy", "eval/loss", "eval/accuracy"):
        alone = series(layouts[1], "random", key)
        assert len(alone) == (STEPS if key.startswith("train/") else 2), key
        assert series(layouts[2], variant, key) == pytest.approx(alone, rel=1e-5), key
    for name, values in layouts[1][0]["random"]["parameters"].items():
        expected, actual = torch.tensor(values), torch.tensor(layouts[2][0][variant]["parameters"][name])
        assert torch.linalg.norm(actual - expected) <= 1e-4 * torch.linalg.norm(expected), name


@pytest.mark.parametrize("world", [2, 3])
def test_mixture_gives_the_same_examples_on_every_layout(layouts, world):
    for key in ("train/loss", "eval/loss", "eval/loss/some", "eval/accuracy/source_2"):
        alone = series(layouts[1], "mixture", key)
        assert len(alone) == (STEPS if key.startswith("train/") else 2), key
        assert series(layouts[world], "mixture", key) == pytest.approx(alone, rel=1e-5), key
    assert examples_of_steps(layouts[world], "mixture") == examples_of_steps(layouts[1], "mixture")


def test_resumed_mixture_equals_the_uninterrupted_one(layouts):
    merged = series(layouts[2], "first of mixture") | series(layouts[2], "rest of mixture")
    assert merged == series(layouts[2], "mixture")
    assert layouts[2][0]["rest of mixture"]["parameters"] == layouts[2][0]["mixture"]["parameters"]


def test_resumed_run_equals_the_uninterrupted_one(layouts):
    merged = layouts[2][0]["first"]["series"]["train/loss"] | layouts[2][0]["rest"]["series"]["train/loss"]
    assert merged == layouts[2][0]["fsdp"]["series"]["train/loss"]
    assert layouts[2][0]["rest"]["parameters"] == layouts[2][0]["fsdp"]["parameters"]


def test_export_names_the_classes_and_gives_the_metrics_again(layouts, cases):
    model, transform = trainyard.load(cases.folder / "export")
    classes = tuple(sorted({label for _, label in cases.train}))
    assert transform.classes == classes
    assert model.config.id2label == dict(enumerate(classes))
    files = sorted((cases.folder / "held_out").glob("*/*.png"))
    with torch.no_grad():
        logits = model(transform(files)).logits
        assert torch.equal(model(transform([files[0].read_bytes(), Image.open(files[1])])).logits, logits[:2])
    hits = sum(classes[best] == file.parent.name for best, file in zip(logits.argmax(dim=1), files, strict=True))
    assert series(layouts[1], "alone", "eval/accuracy")[STEPS] == pytest.approx(hits / len(files))
    assert "image-classification" in (cases.folder / "export" / "README.md").read_text()


def test_export_is_a_folder_of_transformers(layouts, cases):
    export = cases.folder / "export"
    model = AutoModelForImageClassification.from_pretrained(export)
    processor = AutoImageProcessor.from_pretrained(export)
    pixels = processor(images=[Image.new("RGB", (9, 7))], return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, SIZE, SIZE)
    assert type(model).__name__ == "ViTForImageClassification"
    assert model.classifier.out_features == len({label for _, label in cases.train})


def test_what_is_no_picture_is_named(layouts, cases, tmp_path):
    _, transform = trainyard.load(cases.folder / "export")
    (tmp_path / "bad.png").write_bytes(b"text")
    for given, reason in [
        (tmp_path / "bad.png", r"bad\.png is not an image"),
        ([Image.new("RGB", (2, 2)), 7], "picture 1 is a int"),
        ([], "no picture"),
    ]:
        with pytest.raises(ValueError, match=reason):
            transform(given)


def test_checkpoint_becomes_the_same_model(layouts, cases, tmp_path):
    made = convert_checkpoint(cases.folder / "alone", cases.spec(), tmp_path / "out", STEPS)
    model, transform = trainyard.load(made)
    exported, _ = trainyard.load(cases.folder / "export")
    assert transform.classes == tuple(sorted({label for _, label in cases.train}))
    pixels = transform(sorted((cases.folder / "held_out").glob("*/*.png")))
    with torch.no_grad():
        assert torch.equal(model(pixels).logits, exported(pixels).logits)


def test_checkpoint_of_an_earlier_release_names_what_to_do(layouts, cases, tmp_path):
    checkpoint = copied_without_classes(cases.folder / "alone", tmp_path / "old", STEPS)
    with pytest.raises(RefusedError, match="without the names of the classes") as raised:
        convert_checkpoint(checkpoint, cases.spec(), tmp_path / "out", STEPS)
    assert "export that the job wrote" in raised.value.hint


class TestModels:
    def build(self, cases, path):
        return build_image_classification(HfModel(path=str(path)), ImageFiles(path=str(cases.folder / "train")), 0)

    def test_folder_without_an_image_processor_is_refused(self, cases, tmp_path):
        (save_vit(tmp_path / "model") / "preprocessor_config.json").unlink()
        with pytest.raises(RefusedError, match="does not hold an image processor"):
            self.build(cases, tmp_path / "model")

    def test_processor_of_another_size_is_refused(self, cases, tmp_path):
        task = self.build(cases, save_vit(tmp_path / "model", size=24))
        with pytest.raises(RefusedError, match="does not take the images of 24 x 24 pixels"):
            task.build_model()

    def test_model_that_reads_no_images_is_refused(self, cases, tmp_path):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9
        )
        LlamaForCausalLM(config).save_pretrained(save_vit(tmp_path / "model"))
        with pytest.raises(RefusedError, match="does not hold a model for classification of images"):
            self.build(cases, tmp_path / "model").build_model()

    def test_convolutional_network_with_statistics_of_batches_trains(self, cases, tmp_path):
        from transformers import ResNetConfig, ResNetForImageClassification

        folder = save_vit(tmp_path / "model", size=32)
        config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4)
        ResNetForImageClassification(config).save_pretrained(folder)
        task = self.build(cases, folder)
        model = task.build_model()
        batch = task.examples.train_batch(np.arange(4), torch.device("cpu"))
        task.loss_sum(model, batch).backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        assert all(int(value) == 1 for name, value in model.named_buffers() if name.endswith("num_batches_tracked"))
