"""Paths of models and data must be under an allowed root."""

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec

SITE = Site(roots=("/shared", "/home/trainer"))


def problems(model="/shared/m", data="/home/trainer/d.jsonl", **more):
    spec = {
        "task": "causal_lm",
        "steps": 1,
        "model": {"source": "hf", "path": model},
        "data": {"source": "jsonl", "path": data, **more},
    }
    try:
        resolve(parse_spec(spec), SITE)
    except SpecError as error:
        return {problem.param: problem.message for problem in error.problems}
    return {}


def test_paths_under_a_root_are_accepted():
    assert problems() == {}
    assert problems(model="/shared", eval_path="/shared/./x") == {}


@pytest.mark.parametrize("path", ["/etc/passwd", "/sharedx/m", "/", "//shared2"])
def test_paths_outside_the_roots_are_rejected(path):
    message = "is outside the folders that this service allows (TRAINYARD_ALLOWED_ROOTS): /shared, /home/trainer"
    assert problems(model=path) == {"model.path": message}
    assert problems(data=path) == {"data.path": message}
    assert problems(eval_path=path) == {"data.eval_path": message}


@pytest.mark.parametrize("path", ["/shared/../etc", "/shared/a/.."])
def test_parent_references_are_rejected(path):
    assert problems(model=path) == {"model.path": "must not contain `..`"}


@pytest.mark.parametrize("path", ["m", "~/m", "./m"])
def test_relative_paths_are_rejected(path):
    assert next(iter(problems(model=path).values())).startswith("must be an absolute path")
