"""The variants of a sweep."""

import pytest
from pydantic import ValidationError

from trainyard.contract.wire.sweeps import SweepRequest, member_spec, variants


def test_grid_has_every_combination_and_its_last_field_varies_first() -> None:
    grid_variants = variants(SweepRequest(spec={}, grid={"optimizer.lr": [0.1, 0.2], "seed": [1, 2]}))
    assert [(one["optimizer.lr"], one["seed"]) for one in grid_variants] == [(0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2)]


def test_size_is_computed_without_the_variants() -> None:
    assert SweepRequest(spec={}, grid={f"a.b{n}": list(range(1000)) for n in range(9)}).size == 1000**9


def test_member_spec_does_not_modify_the_base_spec() -> None:
    spec = {"optimizer": {"name": "adamw", "lr": 1.0}}
    assert member_spec(spec, {"optimizer.lr": 0.5, "batch.size": 8}) == {
        "optimizer": {"name": "adamw", "lr": 0.5},
        "batch": {"size": 8},
    }
    assert spec == {"optimizer": {"name": "adamw", "lr": 1.0}}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"grid": {"seed": [1]}, "members": [{"seed": 1}]},
        {"grid": {"seed": []}},
        {"grid": {"seed": [1, 2, 1]}},
        {"grid": {"": [1]}},
        {"grid": {"a..b": [1]}},
        {"members": [{}]},
        {"grid": {"seed": [1]}, "max_parallel": 0},
        {"grid": {"seed": [1]}, "max_parallel": True},
        {"grid": {"seed": [1]}, "paralel": 1},
    ],
)
def test_invalid_sweeps_are_rejected(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SweepRequest.model_validate({"spec": {}, **body})
