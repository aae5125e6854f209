"""The helper for scripts: without effect outside a job; in a job it appends to the spool."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trainyard
from tests.support.wait import wait_until
from trainyard import reported_names, script
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.stored_name import metric_name, with_digest
from trainyard.contract.wire.spool import format_record, parse_spool
from trainyard.progress_file import read_progress
from worker.environment.packages import provide_helper

DIGEST = with_digest("", "train/loss")[1:]
OTHER_PYTHONS = ("python3.9", "python3.10", "python3.13")


def forget():
    for known in (script._job, script._stated, script._names):
        known.cache_clear()


@pytest.fixture(autouse=True)
def fresh():
    forget()
    yield
    forget()


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    layout = AttemptLayout(tmp_path / "job" / "attempts" / "2")
    monkeypatch.setenv(script.FOLDER, str(layout.root))
    monkeypatch.setenv("TRAINYARD_EXECUTION", "4")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    return layout


def bodies(layout, execution):
    return [record.body() for record in parse_spool(layout.spool_file(execution))]


class TestOutsideAJob:
    def test_prints_never_stops_and_has_a_folder(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        script.report(3, {"loss": 0.25}, total_steps=10)
        assert capsys.readouterr().out == "step 3/10  train/loss 0.25\n"
        assert script.should_stop() is False
        assert script.checkpoint_dir().resolve() == tmp_path / "checkpoints"
        assert script.checkpoint_dir().is_dir()

    def test_other_ranks_print_nothing(self, monkeypatch, capsys):
        monkeypatch.setenv("RANK", "1")
        script.report(3, {"loss": 0.25})
        assert capsys.readouterr().out == ""

    def test_module_is_importable_from_the_package(self):
        import trainyard

        assert trainyard.report is script.report
        assert trainyard.should_stop is script.should_stop


class TestInAJob:
    def test_first_step_sets_the_resume_step(self, attempt):
        script.report(21, {"loss": 0.5, "eval/score": 2}, total_steps=40)
        script.report(22, {"loss": 0.25}, total_steps=40)
        started, first, second = bodies(attempt, 5)
        assert (started.events[0].type, started.events[0].data["step"]) == ("training_resumed", 20)
        assert (first.execution, first.resumed_from_step, second.resumed_from_step) == (5, 20, 20)
        assert [(p.key, p.step, p.value) for p in first.points] == [("train/loss", 21, 0.5), ("eval/score", 21, 2.0)]
        assert (second.progress.step, second.progress.total_steps) == (22, 40)
        assert second.progress.seconds_per_step >= 0

    def test_first_execution_has_no_resume_step(self, attempt, monkeypatch):
        monkeypatch.setenv("TRAINYARD_EXECUTION", "1")
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
        script.report(10, {"loss": 0.5})
        assert [body.resumed_from_step for body in bodies(attempt, 1)[1:]] == [0]

    @pytest.mark.parametrize(
        "name",
        ["a/λ#%", "lo\nss", "a/\u202eb", "a/\ud800", "x" * 300, "x" * 243 + "\0", "system/x", "system/node-0/x", ""],
    )
    def test_names_are_those_of_the_contract(self, attempt, name):
        script.report(1, {name: 1.0})
        full = name if "/" in name else f"train/{name}"
        assert [point.key for point in bodies(attempt, 5)[-1].points] == [metric_name(full)]

    @pytest.mark.parametrize(
        ("reports", "stored"),
        [
            ([["loss", "train/loss"]], ["loss", "train/loss"]),
            ([["train/loss"], ["loss"]], ["loss", "train/loss"]),
            ([["loss"], ["train/loss"]], ["train/loss", "train/loss~" + DIGEST]),
        ],
    )
    def test_short_and_full_names_stay_distinct_in_all_executions(self, attempt, monkeypatch, reports, stored):
        for execution, order in enumerate((reports, reports[::-1], reports[:1], reports[-1:]), 4):
            forget()
            monkeypatch.setenv("TRAINYARD_EXECUTION", str(execution))
            for names in order:
                script.report(1, {name: len(name) for name in names})
            points = [point for body in bodies(attempt, execution + 1) for point in getattr(body, "points", ())]
            assert len(points) == sum(map(len, order))
            assert {(point.key, point.value) for point in points} <= set(zip(stored, (4.0, 10.0), strict=True))

    @pytest.mark.parametrize("value", ["x", None, [1, 2], 10**400, np.zeros(3)])
    def test_value_that_is_no_number_is_left_out(self, attempt, value):
        script.report(1, {"loss": 0.5, "odd": value})
        assert [point.key for point in bodies(attempt, 5)[-1].points] == ["train/loss"]

    def test_values_that_are_no_mapping_are_left_out(self, attempt):
        script.report(1, [0.5])
        assert bodies(attempt, 5)[-1].points == ()

    def test_each_kind_of_correction_is_stated_once(self, attempt, capsys):
        for step in (1, 2, 3):
            script.report(step + 0.5, {"a\n": 1.0, "x" * 300: 1.0, "odd": None})
            script.report(-1, {"loss": 1.0}, total_steps="many")
        events = [event for body in bodies(attempt, 5) for event in getattr(body, "events", ())]
        adjusted = [event for event in events if event.type == "report_adjusted"]
        kinds = {event.data["kind"] for event in adjusted}
        assert kinds == {"fraction", "name", "value", "step", "total_steps"}
        assert len(adjusted) == len(kinds) == len(capsys.readouterr().err.splitlines())
        assert {event.level for event in adjusted} == {"warning"}
        assert len({event.sequence for event in events}) == len(events)

    def test_stop_writes_a_mark_unless_all_steps_are_done(self, attempt):
        assert script.should_stop() is False
        script.report(3, {"loss": 1.0}, total_steps=4)
        attempt.stop_request.write_text("preempted")
        assert script.should_stop() is True
        assert attempt.yielded(5).exists()
        script.report(4, {"loss": 1.0}, total_steps=4)
        assert not attempt.yielded(5).exists()
        assert script.should_stop() is True
        assert not attempt.yielded(5).exists()

    def test_checkpoint_dir_is_shared_by_all_attempts(self, attempt):
        assert script.checkpoint_dir() == attempt.root.parents[1] / "checkpoints"


class TestWithoutTrainyard:
    """The file alone, as the launcher gives it to a program whose Python has no Trainyard."""

    def test_syntax_is_that_of_python_3_9(self):
        for module in (script, reported_names, trainyard):
            source = Path(module.__file__).read_text()
            compile(ast.parse(source, feature_version=(3, 9)), module.__file__, "exec")

    def test_only_the_standard_library_is_imported(self):
        nodes = [
            node for one in (script, reported_names) for node in ast.walk(ast.parse(Path(one.__file__).read_text()))
        ]
        names = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)} - {"trainyard.reported_names"}
        assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"torch"}

    @pytest.mark.parametrize("python", [sys.executable, *filter(None, map(shutil.which, OTHER_PYTHONS))])
    def test_program_runs_with_the_file_alone(self, python, tmp_path, attempt):
        provide_helper(tmp_path / "packages")
        program = "import trainyard; trainyard.report(1, {'a': 1}, total_steps=1); print(trainyard.should_stop())"
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "packages")}
        variables |= {name: os.environ[name] for name in (script.FOLDER, "TRAINYARD_EXECUTION")}
        command = [python, "-S", "-c", program]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=tmp_path)
        if python != sys.executable and "command not found" in done.stderr:
            return  # a shim of pyenv for a Python that is not active
        assert done.stdout == "False\n", done.stderr
        assert [body.execution for body in bodies(attempt, 4)] == [4, 4]


class TestRecords:
    """Every record is what the contract's models would write."""

    @pytest.mark.parametrize("value", [0.1, -0.0, 1e-300, 1e22, float("nan"), float("inf"), float("-inf"), True, 3])
    def test_values_are_exact(self, attempt, value):
        script.report(7, {"a b/c.d-e_f": value}, total_steps=9)
        _, batch = bodies(attempt, 5)
        assert repr(batch.points[0].value) == repr(float(value))
        assert batch.points[0].key == "a b/c.d-e_f"

    def test_fields_and_their_order_are_those_of_the_models(self, attempt):
        script.report(7, {"loss": 0.5}, total_steps=9)
        script.report(8, {"loss": 0.25, "accuracy": 0.75})
        records = list(parse_spool(attempt.spool_file(5)))
        assert [record.kind for record in records] == ["events", "metrics", "metrics"]
        for record in records:
            # Both are JSON without blanks; a number may have another form of the same value, such as 1e-05.
            (again,) = parse_spool(format_record(record.seq, record.kind, record.body()))
            ours, theirs = (json.loads(text, object_pairs_hook=list) for text in (record.body_text, again.body_text))
            assert ours == theirs

    @pytest.mark.parametrize("step", [-1, 2**53 + 1, "x", "7", None, True, float("nan"), float("inf")])
    def test_report_without_a_valid_step_is_left_out(self, attempt, step):
        script.report(step, {"loss": 1.0})
        assert [event.type for body in bodies(attempt, 5) for event in body.events] == ["report_adjusted"]
        script.report(7, {"loss": 1.0})
        assert [event.type for event in bodies(attempt, 5)[1].events] == ["training_resumed"]

    @pytest.mark.parametrize("step", [3.75, np.float32(3.75)])
    def test_fraction_of_a_step_is_rounded_down(self, attempt, step):
        script.report(step, {"loss": 1.0})
        assert [point.step for point in bodies(attempt, 5)[-1].points] == [3]

    def test_numbers_of_other_types_are_steps(self, attempt):
        script.report(np.int64(3), {"loss": np.float32(0.5)}, total_steps=4.0)
        assert bodies(attempt, 5)[1].progress.step == 3

    def test_many_values_are_several_records(self, attempt):
        script.report(1, {str(number): 1.0 for number in range(2001)})
        assert [len(body.points) for body in bodies(attempt, 5)[1:]] == [1000, 1000, 1]

    def test_progress_file_is_what_the_watchdog_reads(self, attempt, monkeypatch):
        monkeypatch.setenv(script.PROGRESS_INTERVAL, "60")
        monkeypatch.setenv("RANK", "3")
        script.report(1, {"loss": 1.0})
        record = read_progress(attempt.progress, 5)[3]
        assert (record.rank, record.execution, record.phase, record.pid) == (3, 5, "starting", os.getpid())
        assert "script.py" in record.where

    def test_ranks_are_compared_by_step_boundaries_alone(self, attempt, monkeypatch):
        # Only one rank may report.
        monkeypatch.setenv(script.PROGRESS_INTERVAL, "0.01")
        monkeypatch.setenv("RANK", "3")
        script.report(7, {"loss": 1.0})
        assert read_progress(attempt.progress, 5)[3].position == (0, 0)
        script.should_stop()
        script.should_stop()
        wait_until(lambda: read_progress(attempt.progress, 5)[3].position == (0, 2))
