"""The sections of a spec that name texts: files, and mixtures of sources."""

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.forks import fixed_differences
from trainyard.contract.spec.ineffective_fields import evaluation_metrics, ineffective_fields
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.text_data import TextFiles, TextMixture
from trainyard.contract.spec.training_spec import dump_spec, parse_spec

SITE = Site(accelerator="cpu", roots=("/d",), excluded_roots=("/d/secret",))


def spec(model="hf", **data):
    models = {"hf": {"source": "hf", "path": "/d/m"}, "gpt": {"source": "builtin", "name": "gpt"}}
    return parse_spec({"task": "causal_lm", "steps": 10, "model": models[model], "data": data})


def mixture(*sources, **more):
    return spec(source="mixture", sources=list(sources), **more)


def problems(**data):
    try:
        resolve(spec(**data), SITE)
    except SpecError as error:
        return {problem.param: problem.message for problem in error.problems}
    return {}


class TestPaths:
    @pytest.mark.parametrize("source", ["jsonl", "parquet", "arrow", "dataset"])
    @pytest.mark.parametrize("path", ["/d/a", "/d/*.x", ["/d/a", "/d/b/*"]])
    def test_one_path_a_pattern_or_a_list_is_accepted(self, source, path):
        assert problems(source=source, path=path, eval_sets={"a": path}) == {}
        data = spec(source=source, path=path).data
        assert isinstance(data, TextFiles)
        assert dump_spec(spec(source=source, path=path))["data"]["path"] == path

    @pytest.mark.parametrize(
        ("data", "fields"),
        [
            ({"source": "jsonl", "path": ["/d/a", "/e/*"]}, ["data.path.1"]),
            ({"source": "parquet", "path": "/d/secret/*"}, ["data.path"]),
            ({"source": "jsonl", "path": "/d/*/../../etc/*"}, ["data.path"]),
            ({"source": "jsonl", "path": "/d/a", "eval_sets": {"x": ["/d/a", "/e"]}}, ["data.eval_sets.x.1"]),
            ({"source": "mixture", "sources": [{"path": "/d/a"}, {"path": "/e"}]}, ["data.sources.1.path"]),
            ({"source": "mixture", "sources": [{"path": "/d/a"}], "eval_path": "/e"}, ["data.eval_path"]),
        ],
    )
    def test_each_path_outside_the_roots_is_named(self, data, fields):
        assert list(problems(**data)) == fields

    @pytest.mark.parametrize(
        ("data", "field"),
        [
            ({"source": "jsonl", "path": []}, "data.path"),
            ({"source": "jsonl", "path": 3}, "data.path"),
            ({"source": "jsonl", "path": ["/d", 3]}, "data.path.1"),
            ({"source": "jsonl", "path": "/d", "eval_sets": {"a": ["/d", ""]}}, "data.eval_sets.a.1"),
            ({"source": "mixture", "sources": []}, "data.sources"),
            ({"source": "mixture", "sources": [{"path": "/d", "weight": 0}]}, "data.sources.0.weight"),
            ({"source": "mixture", "sources": [{"source": "mixture", "path": "/d"}]}, "data.sources.0.source"),
            ({"source": "mixture"}, "data.sources"),
        ],
    )
    def test_invalid_values_are_named_by_their_path(self, data, field):
        assert list(problems(**data)) == [field]


class TestConflicts:
    @pytest.mark.parametrize(
        ("data", "field"),
        [
            ({"eval_path": "/d/a", "eval_sets": {"a": "/d/a"}}, "data.eval_sets"),
            ({"eval_fraction": 0.1, "eval_path": "/d/a"}, "data.eval_path"),
            ({"eval_fraction": 0.1, "eval_sets": {"a": "/d/a"}}, "data.eval_sets.a"),
            ({"format": "completion", "columns": {"text": "body"}}, "data.columns.text"),
            ({"columns": {"body": "text"}}, "data.columns.body"),
            ({"max_bad_lines": 5}, "data.max_bad_lines"),
        ],
    )
    def test_fields_that_exclude_each_other_or_have_no_effect_are_refused(self, data, field):
        assert list(problems(source="jsonl", path="/d/a", **data)) == [field]

    def test_names_of_sources_are_unique_with_the_default_names(self):
        sources = [{"path": "/d/a", "name": "source_2"}, {"path": "/d/b"}]
        assert list(problems(source="mixture", sources=sources)) == ["data.sources.1.name"]

    def test_weight_of_a_single_source_has_no_effect(self):
        sources = [{"path": "/d/a", "weight": 2}]
        assert list(problems(source="mixture", sources=sources)) == ["data.sources.0.weight"]

    def test_columns_of_each_source_are_checked(self):
        sources = [{"path": "/d/a", "format": "alpaca", "columns": {"prompt": "q"}}]
        assert list(problems(source="mixture", sources=sources)) == ["data.sources.0.columns.prompt"]

    @pytest.mark.parametrize("format", ["chat", "sharegpt"])
    def test_chats_need_a_model_with_a_chat_template(self, format):
        sources = [{"path": "/d/a"}, {"path": "/d/b", "format": format}]
        assert list(problems(model="gpt", source="mixture", sources=sources)) == ["data.sources.1.format"]
        assert list(problems(model="gpt", source="parquet", path="/d/a", format=format)) == ["data.format"]


class TestMixture:
    def test_source_of_a_mixture_is_jsonl_with_weight_1_unless_stated(self):
        data = mixture({"path": "/d/a"}, {"path": "/d/b", "name": "books", "weight": 3}).data
        assert isinstance(data, TextMixture)
        assert [(source.source, source.weight) for source in data.sources] == [("jsonl", 1.0), ("jsonl", 3.0)]
        assert data.names == ("source_1", "books")

    def test_held_out_fraction_makes_an_evaluation_set_of_each_source(self):
        sources = ({"path": "/d/a"}, {"path": "/d/b", "name": "books"})
        names = ("eval/loss", "eval/mean_token_accuracy")
        metrics = (*names, *(f"{name}/{source}" for name in names for source in ("source_1", "books")))
        assert evaluation_metrics(mixture(*sources, eval_fraction=0.1)) == metrics
        assert evaluation_metrics(mixture(*sources, eval_path="/d/c")) == names

    def test_files_for_evaluation_are_read_as_the_first_source(self):
        first = {"path": "/d/a", "source": "parquet", "format": "alpaca", "columns": {"output": "answer"}}
        data = mixture(first, {"path": "/d/b"}, eval_path=["/d/c"]).data
        source = data.evaluation_sources["data.eval_path"]
        assert source.model_dump() == {**first, "path": ("/d/c",)}


def test_evaluation_and_bad_lines_do_not_change_what_a_fork_trains_on():
    base = {"source": "jsonl", "path": "/d/a"}
    other = {"eval_sets": {"a": "/d/b"}, "on_bad_line": "skip", "max_bad_lines": 5}
    assert fixed_differences(spec(**base), spec(**base, **other)) == []
    changed = {**base, "eval_fraction": 0.1, "columns": {"text": "body"}}
    assert fixed_differences(spec(**base), spec(**changed)) == ["data.columns", "data.eval_fraction"]


def test_held_out_fraction_is_evaluation_data():
    document = dump_spec(spec(source="jsonl", path="/d/a", eval_fraction=0.1))
    document["evaluation"]["every_steps"] = 5
    assert ineffective_fields(parse_spec(document)) == []
    document["data"]["eval_fraction"] = 0
    assert [problem.param for problem in ineffective_fields(parse_spec(document))] == ["evaluation.every_steps"]
