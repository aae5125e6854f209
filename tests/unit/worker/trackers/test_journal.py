"""The progress of a program that a tracker describes."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.tracker_spool import bodies, events, parameters, points, tags
from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.stored_name import metric_name, stored_name
from trainyard.contract.wire.reports import MAX_POINTS, MetricsBatch, ParametersReport
from worker.trackers.history import read_history
from worker.trackers.journal import Journal, TrackedValue
from worker.trackers.names import StoredNames
from worker.trackers.parameters import trainer_steps

TRAINER = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_train_epochs": 3.0}


@pytest.mark.parametrize(
    ("parameters", "steps"),
    [
        ({**TRAINER, "max_steps": 40}, 40),
        ({**TRAINER, "max_steps": "40"}, 40),
        ({**TRAINER, "max_steps": -1}, None),
        ({**TRAINER, "max_steps": 40.5}, None),
        ({**TRAINER, "max_steps": True}, None),
        ({**TRAINER, "max_steps": 10**30}, None),
        ({"max_steps": 40}, None),
        (TRAINER, None),
    ],
)
def test_only_arguments_of_the_trainer_give_the_length(parameters: dict, steps: int | None) -> None:
    assert trainer_steps(parameters) == steps


def test_a_changed_name_is_stated_once(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "job").attempt("1-a")
    layout.root.mkdir(parents=True)
    journal = Journal(layout, 0)
    journal.log(1, "wandb", [TrackedValue(name, 1.0, 1, datetime.now(UTC)) for name in ("acc\n1", "acc\n5", "acc@1")])
    journal.close()
    (event,) = events(layout)
    stored = metric_name("acc\n1")
    assert event.message == rf"Metric name 'acc\n1' is stored as {stored!a}; others are changed in the same way"


def test_the_length_is_unknown_until_it_is_stated_and_when_it_was_passed(tmp_path: Path) -> None:
    layout: AttemptLayout = RunLayout(tmp_path / "job").attempt("1-a")
    layout.root.mkdir(parents=True)
    journal = Journal(layout, 0)

    def log(step: int) -> None:
        journal.log(1, "wandb", [TrackedValue("loss", 1.0, step, datetime.now(UTC))])

    log(39)
    journal.describe(1, parameters={**TRAINER, "max_steps": 40})
    journal.describe(1, parameters={"later": 1})
    log(40)
    log(41)
    journal.close()
    progress = [body.progress for body in bodies(layout) if isinstance(body, MetricsBatch)]
    assert [(one.step, one.total_steps) for one in progress if one] == [(39, None), (40, 40), (41, None)]


def test_a_rewritten_curve_begins_again_with_its_own_steps(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "job").attempt("1-a")
    layout.root.mkdir(parents=True)
    journal = Journal(layout, 0)
    now = datetime.now(UTC)
    journal.log(1, "wandb", [TrackedValue("loss", 3.0, None, now), TrackedValue("acc", 0.1, None, now)])
    journal.log(1, "wandb", [TrackedValue("loss", 2.0, None, now)])
    assert journal.rewrite(1, "wandb", [TrackedValue("loss", value, step, now) for value, step in ((3, 10), (2, 20))])
    assert journal.rewrite(1, "mlflow", [TrackedValue("loss", 9.0, 1, now)]) == 0
    journal.log(1, "wandb", [TrackedValue("loss", 1.0, 30, now), TrackedValue("acc", 0.2, None, now)])
    journal.close()
    written = [(body.restarts, [(one.key, one.step) for one in body.points]) for body in bodies(layout)]
    assert written == [
        ((), [("loss", 0), ("acc", 0)]),
        ((), [("loss", 1)]),
        (("loss",), [("loss", 10), ("loss", 20)]),
        ((), [("loss", 30), ("acc", 1)]),
    ]


def test_only_the_first_record_of_a_long_rewritten_curve_begins_it(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "job").attempt("1-a")
    layout.root.mkdir(parents=True)
    journal = Journal(layout, 0)
    now = datetime.now(UTC)
    names = ["a"] * (MAX_POINTS + 1) + ["b"] * 2
    assert journal.rewrite(1, "wandb", [TrackedValue(name, 1.0, step, now) for step, name in enumerate(names)]) == 1003
    journal.rewrite(1, "wandb", [TrackedValue("a", None, 1, now)])
    journal.close()
    written = [(body.restarts, len(body.points)) for body in bodies(layout) if isinstance(body, MetricsBatch)]
    assert written == [(("a",), 1000), (("b",), 3), (("a",), 0)]


def test_parameters_and_tags_stay_distinct(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "job").attempt("1-a")
    layout.root.mkdir(parents=True)
    journal = Journal(layout, 0)
    journal.describe(1, parameters={"a": {"b": 1}, "c.d": 2, "": 3, "_": 4, "\0": 5, "\ufffd": 6})
    journal.describe(1, parameters={"a.b": 7, "c": {"d": 8}, "x" * 251: 9, "x" * 252: 10, "x" * 250: 11})
    journal.describe(1, parameters={"a": {"b": 12}}, tags={"λ": "1", "\n": "2", "x" * 251: "3", "x" * 252: "4"})
    journal.describe(1, removed_tags=["\n"])
    journal.close()
    stored = parameters(layout)
    assert sorted(stored.values()) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert (stored["a.b"], stored["c.d"], stored["x" * 250]) == (12, 2, 11)
    assert sorted(tags(layout).values()) == ["1", "2", "3", "4"]
    assert tags(layout)["λ"] == "1"
    assert bodies(layout)[-1].removed_tags == (stored_name("\n"),)
    assert sorted(event.data["kind"] for event in events(layout)) == ["parameter_name", "tag_name"]


@pytest.mark.parametrize("first", [0, 1])
def test_names_of_runs_that_meet_stay_distinct_in_all_attempts(tmp_path: Path, first: int) -> None:
    """`inner/loss` of the first run, and `loss` of the run `inner`: either may come first, in any attempt."""
    run = RunLayout(tmp_path / "job")
    now = datetime.now(UTC)
    logged = [("", "inner/loss"), ("inner/", "loss")]
    received: list[set[str]] = [set(), set()]
    for attempt, order in enumerate(([first], [1 - first, first], [first, 1 - first]), 1):
        layout = run.attempt(f"{attempt}-a")
        layout.root.mkdir(parents=True)
        journal = Journal(layout, 0)
        for one in order:
            prefix, name = logged[one]
            journal.log(attempt, "wandb", [TrackedValue(prefix + name, float(one), 1, now, prefix)])
            values = {name: one, "plain": one}
            journal.describe(attempt, prefix=prefix, parameters=values, tags={name: str(one)})
            received[one].add(f"medium {journal.media_key(prefix, name)}")
        journal.close()
        for key, _, value in points(layout, attempt):
            received[int(value)].add(f"metric {key}")
        for report in bodies(layout, attempt):
            if isinstance(report, ParametersReport):
                for kind, named in (("parameter", report.parameters), ("tag", report.tags)):
                    for name, value in named.items():
                        if "plain" not in name:
                            received[int(str(value))].add(f"{kind} {name}")
    assert received[first] == {f"{kind} inner/loss" for kind in ("metric", "parameter", "tag", "medium")}
    assert len(received[1 - first]) == 4
    assert all(" inner/loss~" in one for one in received[1 - first])
    with (run.root / "logged_names-0.jsonl").open("a") as file:
        file.write('["Metric", "inner/lo')
    StoredNames(run.root / "logged_names-0.jsonl")


def test_counts_of_a_tracker_resume_at_its_own_steps(tmp_path: Path) -> None:
    run = RunLayout(tmp_path / "job")
    layouts = [run.attempt(name) for name in ("1-a", "2-b")]
    for layout in layouts:
        layout.root.mkdir(parents=True)
    journal, now = Journal(layouts[0], 0), datetime.now(UTC)
    for step in range(3):
        journal.log(1, "wandb", [TrackedValue("loss", 1.0, step, now)])
        journal.log(1, "tensorboard", [TrackedValue("samples", 1.0, step * 1000, now)])
    journal.close()
    run.checkpoints.mkdir()
    (run.checkpoints / "state").touch()
    resumed = Journal(layouts[1], 0)
    assert [resumed.resumes_at(2, tracker) for tracker in ("wandb", "tensorboard")] == [3, 2001]
    resumed.close()
    (run.root / "logged_names-0.jsonl").unlink()  # as of an earlier release
    assert Journal(layouts[1], 0).resumes_at(2, "wandb") == 2001


def test_steps_of_an_axis_are_no_count_of_the_tracker(tmp_path: Path) -> None:
    run = RunLayout(tmp_path / "job")
    layouts = [run.attempt(name) for name in ("1-a", "2-b")]
    layouts[0].root.mkdir(parents=True)
    layouts[1].root.mkdir()
    now = datetime.now(UTC)
    journal = Journal(layouts[0], 0)
    on_axis = TrackedValue("reward", 1.0, 50_000, now, on_axis=True)
    journal.log(1, "wandb", [TrackedValue("loss", 1.0, 7, now), on_axis])
    journal.close()
    run.checkpoints.mkdir()
    (run.checkpoints / "state").touch()
    assert Journal(layouts[1], 0).resumes_at(2, "wandb") == 8


def test_unread_values_have_the_name_of_their_run(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "job").attempt("1-a")
    layout.root.mkdir(parents=True)
    journal, now = Journal(layout, 0), datetime.now(UTC)
    journal.log(1, "wandb", [TrackedValue("inner/loss", 1.0, 1, now)])
    late = TrackedValue("inner/loss", 2.0, 1, now, "inner/")
    assert journal.add_unread(1, "wandb", lambda known: [late] if known(late) else []) == 1
    journal.close()
    (plain, other) = points(layout)
    assert (plain[0], other[0].startswith("inner/loss~")) == ("inner/loss", True)


def test_steps_of_a_former_axis_are_no_history(tmp_path: Path) -> None:
    run = RunLayout(tmp_path / "job")
    layouts = [run.attempt(name) for name in ("1-a", "2-b")]
    now = datetime.now(UTC)
    for execution, layout in enumerate(layouts, 1):
        layout.root.mkdir(parents=True)
        journal = Journal(layout, 0)
        journal.log(execution, "wandb", [TrackedValue("loss", 1.0, 900, now), TrackedValue("acc", 1.0, 900, now)])
        if execution == 2:
            journal.rewrite(execution, "wandb", [TrackedValue("loss", 1.0, 9, now)])
        journal.close()
    assert {name: one.last_step for name, one in read_history(layouts[1], 3).items()} == {"loss": 900, "acc": 900}
    layouts[0].tracker_spool(1, 0).unlink()
    assert {name: one.last_step for name, one in read_history(layouts[1], 3).items()} == {"loss": 9, "acc": 900}
