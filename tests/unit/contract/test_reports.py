"""Worker reports as JSON: non-finite values, times and limits, and the execution site in a claim."""

import json
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainyard.contract.problems import problems_of
from trainyard.contract.wire.jobs import JobProgress, JobResource
from trainyard.contract.wire.reports import Claim, Failure, FinishRecord, MetricsBatch, Point, Progress, end_text

TIME = "2026-01-02T03:04:05.678Z"


class TestPoint:
    @pytest.mark.parametrize(
        ("value", "wire"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (0.5, 0.5)]
    )
    def test_every_number_round_trips_as_strict_json(self, value, wire):
        text = Point(key="train/loss", step=1, value=value, time=TIME).model_dump_json()
        assert json.loads(text, parse_constant=pytest.fail)["value"] == wire
        assert str(Point.model_validate_json(text).value) == str(value)

    @given(st.floats(allow_nan=False))
    def test_numbers_keep_full_precision(self, value):
        text = Point(key="k", step=0, value=value, time=TIME).model_dump_json()
        assert Point.model_validate_json(text).value == value

    def test_times_are_utc_with_milliseconds(self):
        point = Point(key="k", step=0, value=0, time=datetime(2026, 1, 2, 3, 4, 5, 678000, UTC))
        assert json.loads(point.model_dump_json())["time"] == TIME

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"step": -1}, "points.1.step: must be greater than or equal to 0"),
            ({"value": True}, "points.1.value: must be a number, not true or false"),
            ({"value": None}, "points.1.value: must be a number"),
            ({"key": ""}, "points.1.key: must have at least 1 character"),
        ],
    )
    def test_a_bad_point_is_named_by_its_index(self, change, expected):
        good = {"key": "k", "step": 1, "value": 1.0, "time": TIME}
        with pytest.raises(ValidationError) as caught:
            MetricsBatch.model_validate({"execution": 1, "resumed_from_step": 0, "points": [good, {**good, **change}]})
        assert [str(problem) for problem in problems_of(caught.value)] == [expected]


class TestProgress:
    @pytest.mark.parametrize(("total", "text"), [(400, "39 of 400"), (None, "39"), (0, "39")])
    def test_the_length_is_stated_if_it_is_known(self, total, text):
        assert Progress(step=39, total_steps=total).step_text(" of ") == text

    def test_the_end_of_a_program_does_not_state_its_steps(self):
        record = FinishRecord(execution=1, reason="completed", time=TIME)
        assert end_text(record) == "Completed all steps."
        assert end_text(record.model_copy(update={"of_program": True})) == "The program ended with exit code 0."


class TestResources:
    def test_unknown_fields_of_a_newer_service_are_ignored(self):
        assert JobProgress.model_validate({"step": 1, "total_steps": 2, "invented_later": 3}).total_steps == 2
        assert JobResource.model_config["extra"] == "ignore"


@pytest.mark.parametrize(
    ("type_", "message", "summary"),
    [
        ("ValueError", "bad\nvalue", "rank 1: ValueError: bad"),
        ("Grouped", "\nfirst", "rank 1: Grouped: first"),
        ("ScriptFailed", "the program ended with exit code 3", "rank 1: the program ended with exit code 3"),
        ("SystemExit", "config is wrong", "rank 1: config is wrong"),
        ("SystemExit", "", "rank 1: "),
    ],
)
def test_only_names_of_exceptions_are_shown(type_: str, message: str, summary: str) -> None:
    assert Failure(rank=1, type=type_, message=message).summary == summary


def claim(**changes: str) -> Claim:
    return Claim.model_validate({"nonce": "nonce-0001", "host": "vm", "pid": 7, **changes})


def test_node_name_is_the_schedulers_or_else_the_host_name() -> None:
    assert claim().where == "vm"
    assert claim(nodes="node[1-2]").where == "node[1-2] (vm)"
    assert claim(nodes="vm").where == "vm"
    assert claim(nodes="gpu01", host="gpu01.cluster.org").where == "gpu01.cluster.org"


def test_invalid_node_names_are_rejected() -> None:
    with pytest.raises(ValidationError):
        claim(nodes="node1; rm -rf /")
