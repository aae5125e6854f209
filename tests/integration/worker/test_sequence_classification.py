"""Classification of texts: the updates of a bare loop of transformers, on any layout, and an export that loads."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import trainyard
from tests.integration.worker.harness import examples_of_steps, run_layout, series
from tests.support import hf
from tests.support.checkpoints import convert_checkpoint, copied_without_classes
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.text_data import TextFiles
from trainyard.contract.wire.generation import GenerationSettings
from trainyard.loading.errors import LoadError
from trainyard.loading.generation import generate_text
from worker.core.errors import RefusedError
from worker.core.random_state import seed_generators
from worker.data.labelled_texts import load_labelled
from worker.tasks.sequence_classification import build_classification

pytestmark = pytest.mark.timeout(400)
"""The first test waits for all runs."""

STEPS, BATCH = 6, 8
VARIANTS = {"ddp": {"strategy": "ddp"}, "zero2": {"strategy": "zero2"}, "fsdp": {"strategy": "fsdp"}}
LAYOUTS = [(2, "ddp"), (2, "zero2"), (2, "fsdp"), (3, "fsdp")]
PHRASES = {"good": "a fine day, and ", "bad": "what a terrible ", "none": "it is "}


def lines(count, start=0):
    """Return texts of different lengths whose words tell the class."""
    labels = list(PHRASES)
    return [
        {"text": PHRASES[labels[n % 3]] * (1 + n % 4) + str(n), "label": labels[n % 3]}
        for n in range(start, start + count)
    ]


class Cases:
    def __init__(self, folder):
        self.folder = folder
        hf.save_llama(folder / "model")
        self.train = hf.write_lines(folder / "train.jsonl", lines(30))
        self.held_out = hf.write_lines(folder / "held_out.jsonl", lines(11, start=100))

    def spec(self, **changes):
        return {
            "version": 1,
            "task": "sequence_classification",
            "precision": "fp32",
            "seed": 5,
            "model": {"source": "hf", "path": str(self.folder / "model")},
            "data": {"source": "jsonl", "path": str(self.train), "eval_path": str(self.held_out), "max_length": 32},
            "steps": STEPS,
            "batch": {"size": BATCH, "micro_size": 3},
            "optimizer": {"name": "adamw", "lr": 0.003, "clip_norm": None},
            "evaluation": {"every_steps": 3},
            "log": {"every_steps": 1},
            **changes,
        }

    def mixture(self, **fields):
        sources = [{"path": str(self.train), "name": "some"}, {"path": str(self.held_out), "weight": 3}]
        return {"source": "mixture", "sources": sources, "eval_fraction": 0.25, "max_length": 32, **fields}

    def on(self, world):
        if world == 1:
            return {
                "alone": {"spec": self.spec(), "export": str(self.folder / "export"), "run": "alone"},
                "mixture": {"spec": self.spec(data=self.mixture())},
                "recomputed": {"spec": self.spec(activation_checkpointing="full")},
            }
        cases = {variant: {"spec": self.spec(**VARIANTS[variant])} for ranks, variant in LAYOUTS if ranks == world}
        mixture = self.spec(data=self.mixture(), strategy="fsdp")
        cases["mixture"] = {"spec": mixture}
        if world == 2:
            cases["first of mixture"] = {"spec": mixture, "run": "resumed mixture", "until": 4}
            cases["rest of mixture"] = {"spec": mixture, "run": "resumed mixture"}
            cases["first"] = {"spec": self.spec(**VARIANTS["fsdp"]), "run": "resumed", "until": 3}
            cases["rest"] = {"spec": self.spec(**VARIANTS["fsdp"]), "run": "resumed"}
        return cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def layouts(cases):
    return {world: run_layout(world, cases.on(world), cases.folder / str(world), seconds=300) for world in (1, 2, 3)}


def test_updates_equal_those_of_a_bare_loop(layouts, cases):
    tokenizer = AutoTokenizer.from_pretrained(cases.folder / "model")
    classes = sorted(PHRASES)
    seed_generators(5)
    model = AutoModelForSequenceClassification.from_pretrained(cases.folder / "model", num_labels=3)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.0)
    rows = lines(30)
    examples = layouts[1][0]["alone"]["examples"]
    for step in range(1, STEPS + 1):
        chosen = [rows[index] for index in examples[str(step)]]
        batch = tokenizer([row["text"] for row in chosen], truncation=True, max_length=32, padding=True)
        inputs = {name: torch.tensor(batch[name]) for name in ("input_ids", "attention_mask")}
        labels = torch.tensor([classes.index(row["label"]) for row in chosen])
        loss = functional.cross_entropy(model(**inputs).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert series(layouts[1], "alone")[step] == pytest.approx(loss.item(), rel=1e-4), step
    trained = layouts[1][0]["alone"]["parameters"]
    for name, parameter in model.named_parameters():
        expected, actual = parameter.detach().flatten(), torch.tensor(trained[name])
        assert torch.linalg.norm(actual - expected) <= 1e-3 * torch.linalg.norm(expected), name


@pytest.mark.parametrize(("world", "variant"), LAYOUTS)
def test_every_layout_makes_the_same_updates_and_metrics(layouts, world, variant):
    for key in ("train/loss", "train/accuracy", "eval/loss", "eval/accuracy", "eval/f1"):
        alone = series(layouts[1], "alone", key)
        assert len(alone) == (STEPS if key.startswith("train/") else 2), key
        assert series(layouts[world], variant, key) == pytest.approx(alone, rel=1e-5), key
    for name, values in layouts[1][0]["alone"]["parameters"].items():
        expected, actual = torch.tensor(values), torch.tensor(layouts[world][0][variant]["parameters"][name])
        assert torch.linalg.norm(actual - expected) <= 1e-4 * torch.linalg.norm(expected), name


def test_activation_checkpointing_gives_the_same_losses(layouts):
    assert series(layouts[1], "recomputed") == series(layouts[1], "alone")


@pytest.mark.parametrize("world", [2, 3])
def test_mixture_gives_the_same_examples_on_every_layout(layouts, world):
    for key in ("train/loss", "eval/loss", "eval/loss/some", "eval/f1/source_2"):
        alone = series(layouts[1], "mixture", key)
        assert len(alone) == (STEPS if key.startswith("train/") else 2), key
        assert series(layouts[world], "mixture", key) == pytest.approx(alone, rel=1e-5), key
    assert examples_of_steps(layouts[world], "mixture") == examples_of_steps(layouts[1], "mixture")


def test_resumed_mixture_equals_the_uninterrupted_one(layouts):
    merged = series(layouts[2], "first of mixture") | series(layouts[2], "rest of mixture")
    assert merged == series(layouts[2], "mixture")
    assert layouts[2][0]["rest of mixture"]["parameters"] == layouts[2][0]["mixture"]["parameters"]


def test_resumed_run_equals_the_uninterrupted_one(layouts):
    merged = series(layouts[2], "first") | series(layouts[2], "rest")
    assert merged == series(layouts[2], "fsdp")
    assert layouts[2][0]["rest"]["parameters"] == layouts[2][0]["fsdp"]["parameters"]


def test_export_names_the_classes_and_gives_the_metrics_again(layouts, cases):
    loaded = trainyard.load(cases.folder / "export")
    model, tokenizer = loaded
    assert model.config.id2label == dict(enumerate(sorted(PHRASES)))
    rows = lines(11, start=100)
    batch = tokenizer([row["text"] for row in rows], truncation=True, max_length=32, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    predicted = [model.config.id2label[int(best)] for best in logits.argmax(dim=-1)]
    truth = [row["label"] for row in rows]
    hits = sum(one == other for one, other in zip(predicted, truth, strict=True))
    assert series(layouts[1], "alone", "eval/accuracy")[STEPS] == pytest.approx(hits / 11)
    assert series(layouts[1], "alone", "eval/f1")[STEPS] == pytest.approx(macro_f1(truth, predicted))
    assert "text-classification" in (cases.folder / "export" / "README.md").read_text()


def macro_f1(truth, predicted):
    scores = []
    for name in sorted({*truth, *predicted}):
        hit = sum(one == other == name for one, other in zip(truth, predicted, strict=True))
        scores.append(2 * hit / (truth.count(name) + predicted.count(name)))
    return sum(scores) / len(scores)


class TestFiles:
    @pytest.fixture
    def tokenizer(self, cases):
        return AutoTokenizer.from_pretrained(cases.folder / "model")

    def load(self, tmp_path, tokenizer, records, known=(), evaluation=(), **options):
        path = hf.write_lines(tmp_path / "train.jsonl", records)
        if evaluation:
            options["eval_path"] = str(hf.write_lines(tmp_path / "eval.jsonl", evaluation))
        return load_labelled(TextFiles(path=str(path), **options), tokenizer, 16, known)

    def test_numbers_are_ordered_by_value_and_known_classes_keep_their_order(self, tmp_path, tokenizer):
        records = [{"text": str(n), "label": n} for n in (10, 9, -1)]
        files = self.load(tmp_path, tokenizer, records)
        assert files.classes == ("-1", "9", "10")
        assert files.examples.labels.tolist() == [2, 1, 0]
        assert self.load(tmp_path, tokenizer, records, ("10", "9", "8", "-1")).classes == ("10", "9", "8", "-1")
        assert self.load(tmp_path, tokenizer, records, ("10", "9")).classes == ("-1", "9", "10")

    @pytest.mark.parametrize("label", [None, True, 1.5, ["a"], "", "x" * 201])
    def test_bad_label_is_refused_with_its_line_or_skipped(self, tmp_path, tokenizer, label):
        records = [*lines(6), {"text": "x", "label": label}]
        with pytest.raises(RefusedError, match="line 7"):
            self.load(tmp_path, tokenizer, records)
        files = self.load(tmp_path, tokenizer, records, on_bad_line="skip")
        assert (files.examples.train, files.notices[0].kind) == (6, "bad_lines_skipped")

    def test_one_class_and_unknown_classes_of_an_evaluation_are_refused(self, tmp_path, tokenizer):
        with pytest.raises(RefusedError, match="have 1 classes"):
            self.load(tmp_path, tokenizer, lines(1) * 3)
        with pytest.raises(RefusedError, match=r"data\.eval_path: has a label that no training example has"):
            self.load(tmp_path, tokenizer, lines(6), evaluation=[{"text": "a", "label": "other"}])

    def test_batches_are_padded_to_their_longest_text(self, tmp_path, tokenizer):
        records = [
            {"text": "", "label": "a"},
            {"text": "one two three", "label": "b"},
            {"text": "x" * 500, "label": "a"},
        ]
        files = self.load(tmp_path, tokenizer, records)
        tokens, mask, labels = files.examples.train_batch(np.array([1, 0]), torch.device("cpu"))
        assert tokens.shape == mask.shape
        assert mask.sum(dim=1).tolist() == [tokens.shape[1], 1]
        assert labels.tolist() == [1, 0]
        assert files.examples.lengths.max() == 16
        assert [notice.kind for notice in files.notices] == ["data_truncated"]


def test_folder_without_a_part_of_the_body_is_refused(cases, tmp_path):
    from safetensors.torch import load_file, save_file

    from worker.tasks.hf_classifier import load_text_classifier
    from worker.tasks.hf_model import HfFolder

    hf.save_llama(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    tensors.pop("model.layers.0.mlp.up_proj.weight")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(RefusedError, match=r"does not fit its config\.json: it lacks model\.layers\.0"):
        load_text_classifier(HfFolder(str(tmp_path / "model")), ("a", "b"), 0)
    assert json.loads((cases.folder / "export" / "config.json").read_text())["architectures"] == [
        "LlamaForSequenceClassification"
    ]


def test_encoder_without_a_pooler_gets_a_head(cases, tmp_path):
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = AutoTokenizer.from_pretrained(cases.folder / "model")
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48
    )
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    data = TextFiles(path=str(cases.train), eval_path=str(cases.held_out), max_length=32)
    task = build_classification(HfModel(path=str(tmp_path / "bert")), data)
    model = task.build_model()
    batch = task.examples.train_batch(np.arange(8), torch.device("cpu"))
    loss = task.loss_sum(model, batch)
    loss.backward()
    assert loss.item() == pytest.approx(8 * np.log(3), rel=0.2)
    assert all(parameter.grad is not None for parameter in model.parameters())
    sums = task.evaluation_sums(model, task.examples.held_out_batch(np.arange(11), torch.device("cpu")))
    assert sum(int(sums[f"eval/f1:present:{index}"]) for index in range(3)) == 11


def test_checkpoint_becomes_the_same_model(layouts, cases, tmp_path):
    made = convert_checkpoint(cases.folder / "alone", cases.spec(), tmp_path / "out", STEPS)
    model, tokenizer = trainyard.load(made)
    exported, _ = trainyard.load(cases.folder / "export")
    assert model.config.id2label == dict(enumerate(sorted(PHRASES)))
    inputs = tokenizer(["what a terrible day"], return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, exported(**inputs).logits)


def test_checkpoint_of_an_earlier_release_names_what_to_do(layouts, cases, tmp_path):
    checkpoint = copied_without_classes(cases.folder / "alone", tmp_path / "old", STEPS)
    with pytest.raises(RefusedError, match="without the names of the classes"):
        convert_checkpoint(checkpoint, cases.spec(), tmp_path / "out", STEPS)


def test_model_that_classifies_does_not_continue_texts(layouts, cases):
    model, tokenizer = trainyard.load(cases.folder / "export")
    with pytest.raises(LoadError, match="does not continue texts"):
        generate_text(model, tokenizer, "Hi", GenerationSettings(), lambda text: None)
