"""Rules of images as data, and of task `image_classification`."""

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.forks import fixed_differences
from trainyard.contract.spec.ineffective_fields import evaluation_metrics
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec

SITE = Site(accelerator="cpu", roots=("/d",))
IMAGES = {"source": "images", "path": "/d/a"}
ONE = {"path": "/d/a"}
OF_FIRST = "data.sources.0."
SOURCES = {"source": "images", "sources": [ONE | {"weight": 3, "name": "most"}, {"path": ["/d/b/*.parquet"]}]}
HF = {"source": "hf", "path": "/d/m"}
CONVNET = {"source": "builtin", "name": "convnet"}
DIGITS = {"source": "builtin", "name": "digits"}


def spec(**changes):
    base = {"task": "image_classification", "steps": 10, "model": HF, "data": IMAGES}
    return parse_spec(base | changes)


def problems(**changes):
    try:
        resolve(spec(**changes), SITE)
    except SpecError as error:
        return {problem.param: problem.message for problem in error.problems}
    return {}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data": IMAGES | {"eval_path": "/d/b", "crop": 0.3, "flip": True, "on_bad_line": "skip", "max_bad_lines": 3}},
        {"data": IMAGES | {"path": ["/d/a/*.parquet", "/d/b"], "eval_fraction": 0.1, "columns": {"image": "picture"}}},
        {"batch": {"loaders": 4}, "loss": {"label_smoothing": 0.1}},
        {"strategy": "fsdp", "gpus": 2},
        {"lora_rank": 4, "lora": {"targets": ["query", "value"], "merge": True}},
        {"model": CONVNET, "data": DIGITS},
        {"data": SOURCES | {"eval_fraction": 0.1, "crop": 0.5}},
        {"data": SOURCES | {"eval_path": "/d/c"}},
    ],
)
def test_valid_specs_are_accepted(changes):
    assert problems(**changes) == {}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": CONVNET}, "model.name"),
        ({"model": {"source": "builtin", "name": "gpt"}, "data": DIGITS}, "model.name"),
        ({"data": DIGITS}, "data.source"),
        ({"data": {"source": "jsonl", "path": "/d/a"}}, "data.source"),
        ({"data": {"source": "jsonl", "path": "/d/a"}, "model": CONVNET}, "data.source"),
        ({"data": {"source": "builtin", "name": "parity"}, "model": CONVNET}, "data.name"),
        ({"task": "causal_lm"}, "data.source"),
        ({"task": "custom", "target": "a:b", "code": "sha256:" + "0" * 64}, "data.source"),
        ({"lora_rank": 4, "lora": {"base_dtype": "nf4"}}, "lora.base_dtype"),
        ({"trainable": ["classifier.*"]}, "trainable"),
        ({"data": IMAGES | {"path": "/e/a"}}, "data.path"),
        ({"data": IMAGES | {"path": ["/d/a", "/d/../e"]}}, "data.path.1"),
        ({"data": IMAGES | {"eval_path": "b"}}, "data.eval_path"),
        ({"data": IMAGES | {"path": []}}, "data.path"),
        ({"data": {"source": "images"}}, "data.path"),
        ({"data": SOURCES | {"path": "/d/a"}}, "data.path"),
        ({"data": SOURCES | {"columns": {"image": "a"}}}, "data.columns"),
        (
            {"data": {"source": "images", "sources": [{"path": "/d/a", "columns": {"text": "a"}}]}},
            OF_FIRST + "columns.text",
        ),
        ({"data": {"source": "images", "sources": [{"path": "/e/a"}]}}, OF_FIRST + "path"),
        ({"data": {"source": "images", "sources": [{"path": ["/d/a", "b"]}]}}, OF_FIRST + "path.1"),
        ({"data": {"source": "images", "sources": [{"path": "/d/a", "weight": 2}]}}, OF_FIRST + "weight"),
        ({"data": {"source": "images", "sources": [{"path": "/d/a", "weight": 0}]}}, OF_FIRST + "weight"),
        ({"data": {"source": "images", "sources": [ONE | {"name": "a"}, ONE | {"name": "a"}]}}, "data.sources.1.name"),
        ({"data": IMAGES | {"eval_path": "/d/b", "eval_fraction": 0.1}}, "data.eval_path"),
        ({"data": IMAGES | {"columns": {"text": "a"}}}, "data.columns.text"),
        ({"data": IMAGES | {"crop": 0}}, "data.crop"),
        ({"data": IMAGES | {"eval_fraction": 1}}, "data.eval_fraction"),
        ({"data": IMAGES | {"max_bad_lines": 3}}, "data.max_bad_lines"),
        ({"data": IMAGES | {"format": "text"}}, "data.format"),
        ({"evaluation": {"every_steps": 2}}, "evaluation.every_steps"),
        ({"model": CONVNET, "data": DIGITS, "batch": {"loaders": 2}}, "batch.loaders"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_field(changes, field):
    assert list(problems(**changes)) == [field]


def test_images_for_a_task_of_text_name_the_remedy_once():
    refused = problems(task="sequence_classification")
    assert refused.keys() == {"data.source"}
    assert "image_classification" in refused["data.source"]


def test_metrics_of_evaluations_are_known():
    data = IMAGES | {"eval_path": "/d/b"}
    assert evaluation_metrics(spec(data=data)) == ("eval/loss", "eval/accuracy")
    assert problems(data=data, checkpoint={"keep_best": {"metric": "eval/accuracy", "mode": "max"}}) == {}
    several = SOURCES | {"eval_fraction": 0.1}
    named = tuple(f"{name}/{one}" for name in ("eval/loss", "eval/accuracy") for one in ("most", "source_2"))
    assert evaluation_metrics(spec(data=several)) == ("eval/loss", "eval/accuracy", *named)


def test_fork_that_evaluates_otherwise_trains_alike():
    source = spec(data=IMAGES | {"eval_path": "/d/b"})
    assert fixed_differences(source, spec(data=IMAGES | {"eval_path": "/d/c", "on_bad_line": "skip"})) == []
    assert fixed_differences(source, spec(data=IMAGES | {"crop": 0.5})) != []
