"""Embedding of texts: the updates of a bare loop of transformers, on any layout, and an export that loads."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM

import trainyard
from tests.integration.worker.harness import examples_of_steps, run_layout, series
from tests.support import hf
from tests.support.checkpoints import export_request, save_checkpoint
from trainyard.contract.spec.sections import Embedding, HfModel
from trainyard.contract.spec.text_data import TextFiles
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.generation import GenerationSettings
from trainyard.loading.errors import LoadError
from trainyard.loading.generation import generate_text
from worker.core.errors import RefusedError
from worker.core.random_state import seed_generators
from worker.data.text_pairs import load_pairs
from worker.export.checkpoint import export_checkpoint
from worker.tasks.text_embedding import build_embedding, excluded_candidates

pytestmark = pytest.mark.timeout(400)
"""The first test waits for all runs."""

STEPS, GROUPS, SIZE = 6, 3, 4
VARIANTS = {"ddp": {"strategy": "ddp"}, "zero2": {"strategy": "zero2"}, "fsdp": {"strategy": "fsdp"}}
LAYOUTS = [(2, "ddp"), (2, "zero2"), (2, "fsdp"), (3, "fsdp")]
NUMERALS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def pairs(count, start=0, *, negatives=False):
    """Return pairs of a number in digits and in words."""
    rows = []
    for n in range(start, start + count):
        row = {"anchor": f"number {n}", "positive": " ".join(NUMERALS[int(digit)] for digit in str(n))}
        rows.append(row | ({"negative": f"no number, {n}"} if negatives else {}))
    return rows


class Cases:
    def __init__(self, folder):
        self.folder = folder
        hf.save_llama(folder / "model")
        self.train = hf.write_lines(folder / "train.jsonl", pairs(30))
        self.held_out = hf.write_lines(folder / "held_out.jsonl", pairs(11, start=100))

    def spec(self, **changes):
        return {
            "version": 1,
            "task": "text_embedding",
            "precision": "fp32",
            "seed": 5,
            "model": {"source": "hf", "path": str(self.folder / "model")},
            "data": {"source": "jsonl", "path": str(self.train), "eval_path": str(self.held_out), "max_length": 32},
            "embedding": {"group_size": SIZE, "temperature": 0.1, "pooling": "last"},
            "steps": STEPS,
            "batch": {"size": GROUPS, "micro_size": 2},
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
    return Cases(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def layouts(cases):
    return {world: run_layout(world, cases.on(world), cases.folder / str(world), seconds=300) for world in (1, 2, 3)}


def test_updates_equal_those_of_a_loop_with_sentence_transformers(layouts, cases):
    tokenizer = AutoTokenizer.from_pretrained(cases.folder / "model")
    examples, _ = load_pairs(TextFiles(path=str(cases.train), max_length=32), tokenizer, 32, SIZE, 5)
    seed_generators(5)
    body = AutoModel.from_pretrained(cases.folder / "model")
    body.train()

    def vectors(texts):
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        last = batch["attention_mask"].sum(dim=1) - 1
        hidden = body(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
        return functional.normalize(hidden[torch.arange(len(last)), last], dim=-1)

    theirs = MultipleNegativesRankingLoss(None, scale=10.0)
    optimizer = torch.optim.AdamW(body.parameters(), lr=0.003, weight_decay=0.0)
    texts = list(dict.fromkeys(text for row in pairs(30) for text in row.values()))
    # The numbers of an epoch's groups continue after the three held-out ones of the run.
    epoch = 7 + 2
    for step in range(1, STEPS + 1):
        losses = []
        for number in layouts[1][0]["alone"]["examples"][str(step)]:
            group = examples.group(number // epoch * 7 + number % epoch)
            anchors, positives = ([texts[one] for one in column] for column in group.T)
            losses.append(theirs.compute_loss_from_embeddings([vectors(anchors), vectors(positives)], None))
        loss = sum(losses) / len(losses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert series(layouts[1], "alone")[step] == pytest.approx(loss.item(), rel=1e-4), step
    trained = layouts[1][0]["alone"]["parameters"]
    for name, parameter in body.named_parameters():
        expected, actual = parameter.detach().flatten(), torch.tensor(trained[name])
        assert torch.linalg.norm(actual - expected) <= 1e-3 * torch.linalg.norm(expected), name


@pytest.mark.parametrize(("world", "variant"), LAYOUTS)
def test_every_layout_makes_the_same_updates_and_metrics(layouts, world, variant):
    for key in ("train/loss", "train/recall_at_1", "eval/loss", "eval/recall_at_1"):
        alone = series(layouts[1], "alone", key)
        assert len(alone) == (STEPS if key.startswith("train/") else 2), key
        assert series(layouts[world], variant, key) == pytest.approx(alone, rel=1e-5), key
    for name, values in layouts[1][0]["alone"]["parameters"].items():
        expected, actual = torch.tensor(values), torch.tensor(layouts[world][0][variant]["parameters"][name])
        assert torch.linalg.norm(actual - expected) <= 1e-4 * torch.linalg.norm(expected), name


@pytest.mark.parametrize("world", [2, 3])
def test_mixture_gives_the_same_examples_on_every_layout(layouts, world):
    for key in ("train/loss", "eval/loss", "eval/loss/some", "eval/recall_at_1/source_2"):
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


def test_export_makes_the_same_vectors_in_sentence_transformers(layouts, cases):
    model, _ = trainyard.load(cases.folder / "export")
    rows = pairs(11, start=100)
    anchors, positives = (model.encode([row[name] for row in rows]) for name in ("anchor", "positive"))
    hits = 0
    for group in np.array_split(np.arange(11), 2):
        hits += int((anchors[group] @ positives[group].T).argmax(dim=1).eq(torch.arange(len(group))).sum())
    assert series(layouts[1], "alone", "eval/recall_at_1")[STEPS] == pytest.approx(hits / 11)
    theirs = SentenceTransformer(str(cases.folder / "export"), device="cpu")
    texts = ["number 7", "x " * 100]
    assert torch.tensor(theirs.encode(texts)).allclose(model.encode(texts), atol=1e-5)
    assert "sentence-similarity" in (cases.folder / "export" / "README.md").read_text()
    assert json.loads((cases.folder / "export" / "config.json").read_text())["architectures"] == ["LlamaModel"]


def test_checkpoint_becomes_an_export_with_the_same_vectors(cases, tmp_path):
    spec = parse_spec(cases.spec())
    task = build_embedding(spec.model, spec.data, spec.embedding, 0)
    model = task.build_model().eval()
    checkpoint = save_checkpoint(tmp_path, model)
    export_checkpoint(export_request(checkpoint, spec, tmp_path / "export"), lambda update: None)
    tokens, mask, *_ = task.examples.train_batch(np.arange(1), torch.device("cpu"))
    loaded, tokenizer = trainyard.load(tmp_path / "export")
    with torch.no_grad():
        assert loaded(tokens, mask).allclose(model(tokens, mask))
    with pytest.raises(LoadError, match="does not continue texts"):
        generate_text(loaded, tokenizer, "Hi", GenerationSettings(), lambda text: None)


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_encoder_with_a_pooler_learns_by_each_pooling(cases, tmp_path, pooling):
    tokenizer = AutoTokenizer.from_pretrained(cases.folder / "model")
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48
    )
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    data = TextFiles(path=str(cases.train), eval_path=str(cases.held_out), max_length=32)
    embedding = Embedding(group_size=SIZE, pooling=pooling)
    task = build_embedding(HfModel(path=str(tmp_path / "bert")), data, embedding, 0)
    model = task.build_model()
    task.loss_sum(model, task.examples.train_batch(np.arange(3), torch.device("cpu"))).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class TestPairs:
    @pytest.fixture
    def tokenizer(self, cases):
        return AutoTokenizer.from_pretrained(cases.folder / "model")

    def load(self, tmp_path, tokenizer, records, evaluation=(), size=SIZE, **options):
        path = hf.write_lines(tmp_path / "train.jsonl", records)
        if evaluation:
            options["eval_path"] = str(hf.write_lines(tmp_path / "eval.jsonl", evaluation))
        examples, _ = load_pairs(TextFiles(path=str(path), **options), tokenizer, 16, size, 3)
        return examples

    def test_an_epoch_has_each_pair_at_most_once_in_groups_of_its_own(self, tmp_path, tokenizer):
        examples = self.load(tmp_path, tokenizer, pairs(13), pairs(9, start=50))
        assert (examples.train, examples.held_out) == (3, 2)
        epochs = []
        for epoch in (0, 1):
            numbers = examples.order_by_epoch().of_epoch(epoch)
            groups = [tuple(group[:, 0]) for group in map(examples.group, numbers)]
            flat = [text for group in groups for text in group]
            assert len(flat) == len(set(flat)) == 12
            assert examples.pairs_in(numbers) == 12
            epochs.append(groups)
        assert epochs[0] != epochs[1]
        assert examples.pairs_in(np.arange(3, 5)) == 9
        assert examples.pairs_in(examples.largest(2)) == 8

    def test_unshuffled_pairs_keep_their_order(self, tmp_path, tokenizer):
        examples = self.load(tmp_path, tokenizer, pairs(8), shuffle=False)
        anchors = [examples.group(number)[:, 0].tolist() for number in range(3)]
        assert anchors == [[0, 2, 4, 6], [8, 10, 12, 14], [0, 2, 4, 6]]

    def test_negatives_are_candidates(self, tmp_path, tokenizer):
        examples = self.load(tmp_path, tokenizer, pairs(8, negatives=True))
        tokens, mask, texts, groups = examples.train_batch(np.array([0, 1]), torch.device("cpu"))
        assert texts.shape == (3, 8)
        assert tokens.shape == mask.shape == (24, int(mask.sum(dim=1).max()))
        assert groups.tolist() == [0] * 4 + [1] * 4
        assert examples.token_counts.of(np.array([0, 1])).tokens == int(mask.sum())

    @pytest.mark.parametrize(
        ("records", "message"),
        [
            (pairs(3), "hold 3 pairs, fewer than embedding.group_size, which is 4"),
            ([*pairs(4), *pairs(4, negatives=True)], "some pairs have a `negative` and others have none"),
            ([*pairs(4), {"anchor": "a"}], "line 5"),
            ([*pairs(4), {"anchor": "a", "positive": " "}], "has an empty text"),
            ([*pairs(4), {"anchor": "a", "positive": "\ud83d"}], "half of a surrogate pair"),
            ([*pairs(4), {"anchor": "a", "positive": "b", "negative": 1}], "does not have format `text_pair`"),
        ],
    )
    def test_bad_pairs_are_refused(self, tmp_path, tokenizer, records, message):
        with pytest.raises(RefusedError, match=message):
            self.load(tmp_path, tokenizer, records)

    def test_single_pair_of_an_evaluation_is_refused(self, tmp_path, tokenizer):
        with pytest.raises(RefusedError, match=r"data\.eval_path: the files hold one pair"):
            self.load(tmp_path, tokenizer, pairs(4), pairs(1))


def test_known_positives_and_equal_texts_are_no_negatives():
    anchors, positives = [0, 0, 1, 1], [2, 3, 0, 4]
    excluded = excluded_candidates(torch.tensor([anchors, positives]), torch.tensor([0, 0, 0, 1]))
    assert excluded.tolist() == [
        [False, True, True, True],  # the anchor's other positive, the anchor itself, another group
        [True, False, True, True],
        [False, False, False, True],
        [True, True, True, False],
    ]
