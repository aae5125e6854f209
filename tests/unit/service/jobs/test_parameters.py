"""Reported parameters are merged by execution, and bounded."""

from service.jobs.parameters import MAX_LISTED, Reported, merge
from trainyard.contract.wire.reports import MAX_PARAMETER_CHARS, MAX_PARAMETERS, ParametersReport


def report(execution: int, **fields: object) -> ParametersReport:
    return ParametersReport.model_validate({"execution": execution, **fields})


def test_later_values_replace_earlier_ones() -> None:
    first, _ = merge(Reported(), report(1, parameters={"lr": 0.1, "name": "a"}, tags={"team": "x"}, notes="one"))
    second, _ = merge(first, report(2, parameters={"lr": 0.2}, tags={"team": "y"}, notes="two"))
    shown = second.shown()
    assert (shown.parameters, shown.tags, shown.notes) == ({"lr": 0.2, "name": "a"}, {"team": "y"}, "two")


def test_late_report_of_an_older_execution_adds_only_new_names() -> None:
    newer, _ = merge(Reported(), report(2, parameters={"lr": 0.2}, tags={"team": "y"}, notes="two"))
    merged, _ = merge(newer, report(1, parameters={"lr": 0.1, "seed": 3}, tags={"team": "x"}, notes="one"))
    shown = merged.shown()
    assert (shown.parameters, shown.tags, shown.notes) == ({"lr": 0.2, "seed": 3}, {"team": "y"}, "two")


def test_deleted_tags_are_removed_unless_a_later_execution_set_them() -> None:
    first, _ = merge(Reported(), report(2, tags={"team": "x", "kind": "y"}))
    older, _ = merge(first, report(1, removed_tags=["team"]))
    assert older.shown().tags == {"team": "x", "kind": "y"}
    removed, _ = merge(first, report(2, removed_tags=["team", "kind", "unknown"], tags={"kind": "z"}))
    assert removed.shown().tags == {"kind": "z"}


def test_names_beyond_the_limit_are_dropped_and_known_names_still_change() -> None:
    full, dropped = merge(Reported(), report(1, parameters={f"p{n}": n for n in range(MAX_PARAMETERS)}))
    assert dropped == 0
    merged, dropped = merge(full, report(1, parameters={"p0": -1, "one_more": 1}))
    assert (dropped, len(merged.parameters), merged.parameters["p0"][1]) == (1, MAX_PARAMETERS, -1)


def test_values_beyond_the_limit_of_characters_are_dropped() -> None:
    texts = {f"p{n:02}": "x" * 1997 for n in range(50)}
    full, dropped = merge(Reported(), report(1, parameters=texts))
    assert (dropped, len(full.parameters)) == (0, MAX_PARAMETER_CHARS // 2000)
    merged, dropped = merge(full, report(2, parameters={"more": 1, "p00": "y" * 1998, "p01": 5}))
    assert (dropped, merged.parameters["p00"], merged.parameters["p01"]) == (2, (1, "x" * 1997), (2, 5))
    again, dropped = merge(merged, report(2, parameters={"more": 1}))
    assert (dropped, again.parameters["more"]) == (0, (2, 1))


def test_json_round_trip_changes_nothing() -> None:
    values = {"a": True, "b": 1, "c": 0.5, "d": "x", "e": None, "f": float("nan")}
    merged, _ = merge(Reported(), report(3, parameters=values, notes="n"))
    assert Reported.from_json(merged.to_json()) == merged
    assert merged.shown().parameters == {**values, "f": "NaN"}
    assert Reported.from_json(None) == Reported()


def test_lists_have_a_part() -> None:
    merged, _ = merge(Reported(), report(1, parameters={f"p{n}": "x" * 500 for n in range(100)}, notes="y" * 500))
    listed = merged.shown(in_list=True)
    assert (len(listed.parameters), len(listed.parameters["p0"]), len(listed.notes or "")) == (MAX_LISTED, 200, 200)
