"""Adapters of models that classify or embed: the same updates on any layout, and exports that load, merged or not."""

import json

import numpy as np
import pytest
import torch

import trainyard
from tests.integration.worker.harness import examples_of_steps, run_layout, series
from tests.support import hf
from tests.support.checkpoints import convert_checkpoint
from tests.support.images import digits, save_vit, write_folder
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.loading.errors import LoadError
from worker.core.errors import RefusedError
from worker.engine.adapters import add_adapters

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]
"""The first test waits for all runs."""

STEPS = 4
TASKS = ("text_embedding", "sequence_classification", "image_classification")
LORA = {"lora_rank": 4, "lora": {"alpha": 16}}
MERGED = {"lora_rank": 4, "lora": {"alpha": 16, "merge": True}}
LABELS = ("bad", "good", "none")


class Cases:
    def __init__(self, folder):
        self.folder = folder
        hf.save_llama(folder / "llama")
        save_vit(folder / "vit")
        pairs = [{"anchor": f"number {n}", "positive": f"it is {n * n}"} for n in range(30)]
        labelled = [{"text": f"{LABELS[n % 3]} {n}", "label": LABELS[n % 3]} for n in range(30)]
        self.texts = {
            "text_embedding": hf.write_lines(folder / "pairs.jsonl", pairs),
            "sequence_classification": hf.write_lines(folder / "labelled.jsonl", labelled),
        }
        self.images = write_folder(folder / "images", digits(0, 28))

    def spec(self, task, **changes):
        reads_images = task == "image_classification"
        data = {"source": "jsonl", "path": str(self.texts[task]), "max_length": 32} if not reads_images else {}
        return {
            "version": 1,
            "task": task,
            "precision": "fp32",
            "seed": 5,
            "model": {"source": "hf", "path": str(self.folder / ("vit" if reads_images else "llama"))},
            "data": {"eval_fraction": 0.2, **(data or {"source": "images", "path": str(self.images)})},
            "steps": STEPS,
            "batch": {"size": 3 if task == "text_embedding" else 8, "micro_size": 2},
            "optimizer": {"name": "adamw", "lr": 0.01, "clip_norm": None},
            "evaluation": {"every_steps": 2},
            "log": {"every_steps": 1},
            **({"embedding": {"group_size": 4, "temperature": 0.1}} if task == "text_embedding" else {}),
            **LORA,
            **changes,
        }

    def on(self, world):
        cases = {}
        for task in TASKS:
            if world == 1:
                spec, run = self.spec(task), f"alone {task}"
                cases[task] = {"spec": spec, "export": str(self.folder / f"{task} adapter"), "run": run}
                merged = {"spec": self.spec(task, **MERGED), "export": str(self.folder / f"{task} merged")}
                cases[f"{task} merged"] = merged
                continue
            cases[task] = {"spec": self.spec(task, strategy="ddp" if world == 3 else "fsdp")}
            if world == 2:
                resumed = {"spec": self.spec(task, strategy="fsdp"), "run": f"resumed {task}"}
                cases |= {f"{task} first": {**resumed, "until": 2}, f"{task} rest": resumed}
        return cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def layouts(cases):
    return {world: run_layout(world, cases.on(world), cases.folder / str(world), seconds=300) for world in (1, 2, 3)}


def outputs(cases, task, loaded):
    """Return what a loaded model makes of some of its examples."""
    model, second = loaded
    if task == "text_embedding":
        return model.encode(["number 7", "it is 9"])
    if task == "image_classification":
        inputs = {"pixel_values": second(sorted(cases.images.glob("*/*.png"))[:4])}
    else:
        inputs = second(["good 3", "bad 1"], padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize("task", TASKS)
class TestRuns:
    @pytest.mark.parametrize("world", [2, 3])
    def test_every_layout_makes_the_same_updates(self, layouts, task, world):
        for key in ("train/loss", "eval/loss"):
            alone = series(layouts[1], task, key)
            assert len(alone) == (STEPS if key == "train/loss" else 2)
            assert series(layouts[world], task, key) == pytest.approx(alone, rel=1e-5), key
        assert examples_of_steps(layouts[world], task) == examples_of_steps(layouts[1], task)
        for name, values in layouts[1][0][task]["parameters"].items():
            expected, actual = torch.tensor(values), torch.tensor(layouts[world][0][task]["parameters"][name])
            assert torch.linalg.norm(actual - expected) <= 1e-4 * torch.linalg.norm(expected), name

    def test_resumed_run_equals_the_uninterrupted_one(self, layouts, task):
        merged = series(layouts[2], f"{task} first") | series(layouts[2], f"{task} rest")
        assert merged == series(layouts[2], task)

    def test_loss_falls_and_only_adapters_and_the_head_are_trained(self, layouts, task):
        losses = series(layouts[1], task)
        assert losses[STEPS] < losses[1]
        trained = set(layouts[1][0][task]["exported"])
        head = {"text_embedding": (), "sequence_classification": ("score",), "image_classification": ("classifier",)}
        saved = {name for name in trained if ".lora_" not in name}
        assert {name.split(".")[0] for name in saved} == set(head[task])
        assert any(".lora_B." in name for name in trained)


@pytest.mark.parametrize("task", TASKS)
class TestExports:
    def test_adapters_and_the_merged_model_give_the_same_outputs(self, layouts, cases, task):
        adapter = trainyard.load(cases.folder / f"{task} adapter")
        merged = trainyard.load(cases.folder / f"{task} merged")
        expected, actual = outputs(cases, task, merged), outputs(cases, task, adapter)
        assert torch.allclose(actual, expected, atol=1e-5)
        assert not (cases.folder / f"{task} merged" / "adapter_config.json").exists()

    def test_checkpoint_becomes_adapters_and_a_merged_model(self, layouts, cases, task, tmp_path):
        run, spec = cases.folder / f"alone {task}", cases.spec(task)
        expected = outputs(cases, task, trainyard.load(cases.folder / f"{task} adapter"))
        adapter = trainyard.load(convert_checkpoint(run, spec, tmp_path / "adapter", STEPS))
        assert torch.equal(outputs(cases, task, adapter), expected)
        merged = trainyard.load(convert_checkpoint(run, spec, tmp_path / "merged", STEPS, merge=True))
        assert torch.allclose(outputs(cases, task, merged), expected, atol=1e-5)

    def test_another_base_is_refused(self, layouts, cases, task, tmp_path):
        other = save_vit(tmp_path / "m", seed=1) if task == "image_classification" else tmp_path / "m"
        if task != "image_classification":
            hf.save_llama(other, layers=1)
        adapter = convert_checkpoint(cases.folder / f"alone {task}", cases.spec(task), tmp_path / "out", STEPS)
        with pytest.raises(LoadError, match="is not the base model of the training"):
            trainyard.load(adapter, base=other)

    def test_peft_names_the_task_and_the_head(self, layouts, cases, task):
        config = json.loads((cases.folder / f"{task} adapter" / "adapter_config.json").read_text())
        kind = {"text_embedding": "FEATURE_EXTRACTION", "sequence_classification": "SEQ_CLS"}.get(task)
        assert config["task_type"] == kind
        head = {"sequence_classification": ["score"], "image_classification": ["classifier"]}.get(task)
        assert config["modules_to_save"] == head


def test_adapters_of_a_classifier_hold_the_names_of_the_classes(layouts, cases):
    model, transform = trainyard.load(cases.folder / "image_classification adapter")
    expected = tuple(sorted({label for _, label in digits(0, 28)}))
    assert transform.classes == expected
    stored = json.loads((cases.folder / "image_classification adapter" / "classes.json").read_text())
    assert tuple(stored) == expected
    model, _ = trainyard.load(cases.folder / "sequence_classification adapter")
    assert model.config.id2label == dict(enumerate(LABELS))


def test_adapters_of_an_embedding_are_a_folder_of_sentence_transformers(layouts, cases):
    from sentence_transformers import SentenceTransformer

    folder = cases.folder / "text_embedding adapter"
    theirs = SentenceTransformer(str(folder)).encode(["number 7", "it is 9"])
    assert np.allclose(theirs, trainyard.load(folder).model.encode(["number 7", "it is 9"]).numpy(), atol=1e-5)


class TestHeads:
    def spec(self, folder, **lora):
        data = {"source": "images", "path": "/d"}
        return parse_spec(
            {
                "task": "image_classification",
                "steps": 1,
                "lora_rank": 2,
                "lora": lora,
                "model": HfModel(path=str(folder)).model_dump(),
                "data": data,
            }
        )

    def test_model_with_batch_normalization_is_refused(self, tmp_path):
        from transformers import ResNetConfig, ResNetForImageClassification

        model = ResNetForImageClassification(ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1]))
        with pytest.raises(RefusedError, match="batch normalization") as raised:
            add_adapters(model, self.spec(tmp_path))
        assert "without lora_rank" in raised.value.hint

    def test_grouped_convolutions_have_no_adapters_unless_they_can(self, tmp_path):
        from transformers import ConvNextConfig, ConvNextForImageClassification

        config = ConvNextConfig(hidden_sizes=[8, 8], depths=[1, 1], num_stages=2)
        model = ConvNextForImageClassification(config)
        add_adapters(model, self.spec(tmp_path))
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert any("pwconv1.lora_A" in name for name in trained)
        assert not any("dwconv" in name for name in trained)
        assert any(name.startswith("classifier.modules_to_save") for name in trained)

    def test_pooler_of_an_encoder_is_trained_with_the_head(self, tmp_path):
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        model = BertForSequenceClassification(config)
        spec = self.spec(tmp_path).model_copy(update={"task": "sequence_classification"})
        add_adapters(model, spec)
        whole = {name.split(".modules_to_save")[0] for name, p in model.named_parameters() if "modules_to_save" in name}
        assert whole == {"classifier", "bert.pooler"}
