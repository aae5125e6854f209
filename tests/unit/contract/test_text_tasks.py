"""Rules of the tasks `sequence_classification` and `text_embedding`."""

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.ineffective_fields import evaluation_metrics
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec

SITE = Site(accelerator="cpu", roots=("/d",))
FILES = {"source": "jsonl", "path": "/d/a"}
MIXTURE = {"source": "mixture", "sources": [{"path": "/d/a", "weight": 3}, {"path": "/d/b"}]}


def spec(**changes):
    base = {"task": "sequence_classification", "steps": 10, "model": {"source": "hf", "path": "/d/m"}, "data": FILES}
    return parse_spec(base | changes)


def fields(**changes):
    try:
        resolve(spec(**changes), SITE)
    except SpecError as error:
        return [problem.param for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data": FILES | {"format": "labelled_text", "columns": {"label": "stars"}, "eval_path": "/d/b"}},
        {"data": FILES | {"eval_path": "/d/b"}, "loss": {"label_smoothing": 0.1}},
        {"strategy": "fsdp", "gpus": 2},
        {"data": MIXTURE | {"eval_fraction": 0.1}},
        {"task": "text_embedding", "data": MIXTURE | {"eval_fraction": 0.1}},
        {"task": "text_embedding", "data": FILES | {"eval_fraction": 0.1}},
    ],
)
def test_valid_specs_are_accepted(changes):
    assert fields(**changes) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {"source": "builtin", "name": "gpt"}}, "model.source"),
        ({"data": {"source": "builtin", "name": "stdlib"}}, "data.source"),
        ({"data": MIXTURE | {"eval_fraction": 0.1, "eval_path": "/d/c"}}, "data.eval_path"),
        ({"data": {"source": "mixture", "sources": [{"path": "/d/a", "format": "chat"}]}}, "data.sources.0.format"),
        ({"data": FILES | {"format": "chat"}}, "data.format"),
        ({"data": FILES | {"eval_sets": {"a": {"path": "/d/b", "format": "text"}}}}, "data.eval_sets.a.format"),
        ({"lora_rank": 4, "lora": {"base_dtype": "nf4"}}, "lora.base_dtype"),
        ({"lora": {"dora": True}}, "lora"),
        ({"trainable": ["score.*"]}, "trainable"),
        ({"objective": "dpo"}, "objective"),
        ({"task": "causal_lm", "data": FILES | {"format": "labelled_text"}}, "data.format"),
        ({"data": FILES | {"format": "text_pair"}}, "data.format"),
        ({"embedding": {"temperature": 0.1}}, "embedding"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_field(changes, field):
    assert fields(**changes) == [field]


EMBEDDING = {"task": "text_embedding"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"data": FILES | {"format": "text_pair", "columns": {"anchor": "query"}, "eval_path": "/d/b"}}, []),
        ({"embedding": {"pooling": "last", "group_size": 32}, "strategy": "fsdp", "gpus": 2}, []),
        ({"data": FILES | {"format": "labelled_text"}}, ["data.format"]),
        ({"data": FILES | {"format": "chat"}}, ["data.format"]),
        ({"model": {"source": "builtin", "name": "gpt"}}, ["model.source"]),
        ({"loss": {"label_smoothing": 0.1}}, ["loss"]),
        ({"lora_rank": 4, "lora": {"merge": True, "adapter": "/d/x"}}, []),
        ({"trainable": ["*"]}, ["trainable"]),
    ],
)
def test_specs_of_embeddings(changes, expected):
    assert fields(**EMBEDDING | changes) == expected


@pytest.mark.parametrize("group", [1, 0, True, 4097, "8", 2.0])
def test_size_of_a_group_is_a_whole_number_of_at_least_two(group):
    with pytest.raises(SpecError) as caught:
        spec(**EMBEDDING, embedding={"group_size": group})
    assert [problem.param for problem in caught.value.problems] == ["embedding.group_size"]


def test_metrics_of_evaluations_are_known():
    data = FILES | {"eval_sets": {"b": "/d/b"}}
    names = ("eval/loss", "eval/accuracy", "eval/f1")
    assert evaluation_metrics(spec(data=data)) == names + tuple(f"{name}/b" for name in names)
    assert fields(data=data, checkpoint={"keep_best": {"metric": "eval/f1/b", "mode": "max"}}) == []
