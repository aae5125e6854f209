"""Comparisons of a query that no value of a key can meet."""

import pytest

from service.jobs.table.keys import candidates
from service.jobs.table.value_types import check_comparison, spec_fields
from trainyard.contract.job_query import Comparison, Membership, QueryError, parse_query


def check(where: str) -> None:
    """Check a condition on a field of a spec, on a key whose prefix says what it is, or else on a metric."""
    node = parse_query(where)
    assert isinstance(node, Comparison | Membership)
    first, *others = candidates(node.key)
    check_comparison(node, ("metric", node.key.name) if others and node.key.name not in spec_fields() else first)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("eval/loss = 'abc'", "`eval/loss` is a number; compare it with one such as 0.5, not with `abc` (column 1)"),
        ("eval/loss < abc", "not with `abc`"),
        ("eval/loss in (1, nan)", "not with `nan`"),
        ("eval/loss < NaN", "not with `NaN`"),
        ("eval/loss ~ 2", "`eval/loss` is a number; compare it by =, < or >"),
        ("min(eval/loss) = true", "`min(eval/loss)` is a number; compare it with one such as 0.5, not with `true`"),
        ("seed = first", "`seed` is a number; compare it with one such as 0.5, not with `first`"),
        ("batch.micro_size = small", "`batch.micro_size` is a number"),
        ("resources.time_limit_minutes < 2h", "is not a duration; compare it with a number without a unit"),
        ("compile = yes", "`compile` is true or false; compare it by = with either"),
        ("compile = 1", "`compile` is true or false; compare it by = with either"),
        ("compile > false", "`compile` is true or false; compare it by = with either"),
        ("precision = bf17", "no `precision` is `bf17`; did you mean `bf16`?"),
        ("strategy in (ddp, none)", "no `strategy` is `none`; there are auto, single"),
        ("precision < bf16", "`precision` has no order; compare it by =, !=, ~ or in"),
        ("tags.stage < 3", "`tags.stage` is a text; compare it by =, !=, ~ or in"),
        ("spec.metadata.team > 1", "`spec.metadata.team` is a text; compare it by =, !=, ~ or in"),
    ],
)
def test_an_error_names_the_key_and_the_remedy(where: str, message: str) -> None:
    with pytest.raises(QueryError) as raised:
        check(where)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "where",
    [
        "eval/loss = NaN",
        "eval/loss in (Infinity, 1)",
        "eval/loss < '0.5'",
        "perf/step < 2min",
        "compile = true",
        "compile != 'false'",
        "batch.micro_size = auto",
        "precision ~ 16",
        "model.path > a",
        "optimizer.betas ~ 0.9",
        "tags.date > '2026-01-31'",
        "spec.metadata.round = 7",
        "parameters.width < 3",
        "parameters.width < wide",
        "spec.unknown < 3",
    ],
)
def test_comparisons_that_a_value_can_meet_are_allowed(where: str) -> None:
    check(where)


def test_fields_inside_lists_and_maps_are_not_fields_of_a_spec() -> None:
    assert {"seed", "optimizer.lr", "data.sources", "batch.micro_size"} <= set(spec_fields())
    assert not {"data.sources.weight", "metadata", "metadata.", "data.eval_sets.path"} & set(spec_fields())
