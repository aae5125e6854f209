"""Changes of a section's kind in the resolved spec of a job."""

from typing import Any

import pytest

from trainyard.contract.spec.kind_changes import drop_values_of_former_kinds
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.templates import set_path
from trainyard.contract.spec.training_spec import dump_spec, parse_spec


def forked(section: str, values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the section of a fork of a job whose spec sets these values."""
    spec: dict[str, Any] = {
        "task": "causal_lm",
        "model": {"source": "builtin", "name": "gpt"},
        "data": {"source": "builtin", "name": "stdlib"},
        "steps": 100,
    }
    source = dump_spec(resolve(parse_spec(spec | {section: values}), Site(accelerator="cpu")))
    changed = dict(source)
    for path, value in changes.items():
        set_path(changed, path, value)
    result: dict[str, Any] = drop_values_of_former_kinds(source, changed, changes)[section]
    return result


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"name": "lion"}, "adamw", {"betas": [0.9, 0.999]}),
        ({"name": "adamw"}, "lion", {"betas": [0.9, 0.99]}),
        ({"name": "lion", "betas": [0.8, 0.9]}, "adamw", {"betas": [0.8, 0.9]}),
        ({"name": "muon"}, "sgd", {"momentum": 0.0}),
        ({"name": "muon"}, "adamw", {"momentum": 0.0}),
        ({"name": "sgd"}, "muon", {"momentum": 0.95}),
        ({"name": "sgd", "momentum": 0.0}, "muon", {"momentum": 0.95}),
        ({"name": "sgd", "momentum": 0.9, "lr": 0.1}, "adamw", {"momentum": 0.0, "lr": 0.1}),
        ({"name": "muon", "momentum": 0.9}, "sgd", {"momentum": 0.9}),
    ],
)
def test_fork_with_another_optimizer_has_its_defaults(before: Any, after: str, expected: dict[str, Any]) -> None:
    section = forked("optimizer", before, {"optimizer.name": after})
    spec = parse_spec({"task": "script", "argv": ["/bin/true"], "optimizer": section})
    values = dump_spec(spec)["optimizer"]
    assert {field: values[field] for field in expected} == expected


def test_values_that_the_user_sets_are_never_dropped() -> None:
    changes = {"optimizer.name": "adamw", "optimizer.momentum": 0.95, "optimizer.betas": [0.9, 0.99]}
    section = forked("optimizer", {"name": "muon"}, changes)
    assert (section["momentum"], section["betas"]) == (0.95, [0.9, 0.99])


def test_fork_with_another_schedule_has_no_fields_of_the_former() -> None:
    wsd = {"name": "wsd", "decay_ratio": 0.3, "final": 0.1, "warmup_steps": 5}
    assert forked("schedule", wsd, {"schedule.name": "cosine"}) == {"name": "cosine", "final": 0.1, "warmup_steps": 5}
    assert forked("schedule", wsd, {"schedule.name": "constant"}) == {"name": "constant", "warmup_steps": 5}


def test_fork_with_another_source_has_no_fields_of_the_former() -> None:
    changes = {"data.source": "jsonl", "data.path": "/data/train.jsonl"}
    data = forked("data", {"source": "builtin", "name": "stdlib", "eval_fraction": 0.3}, changes)
    assert data == {"source": "jsonl", "path": "/data/train.jsonl", "eval_fraction": 0.3}
    data = forked("data", {"source": "builtin", "name": "stdlib"}, changes)
    assert data == {"source": "jsonl", "path": "/data/train.jsonl"}
    model = forked("model", {"source": "builtin", "name": "gpt", "dropout": 0.1}, {"model.name": "llama"})
    assert model == {"source": "builtin", "name": "llama"}


def test_sections_of_the_same_kind_are_unchanged() -> None:
    section = forked("optimizer", {"name": "lion"}, {"optimizer.lr": 0.5})
    assert (section["betas"], section["lr"]) == ([0.9, 0.99], 0.5)


def test_invalid_source_is_left_to_the_service() -> None:
    before, after = ({"task": "gone", "optimizer": {"name": name}} for name in ("lion", "sgd"))
    assert drop_values_of_former_kinds(before, after, ()) == after
