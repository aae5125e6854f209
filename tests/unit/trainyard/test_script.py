"""The helper for scripts: without effect outside a job; in a job it appends to the spool."""

import pytest

from trainyard import script
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.spool import parse_spool


@pytest.fixture(autouse=True)
def fresh():
    script._job.cache_clear()
    yield
    script._job.cache_clear()


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

    @pytest.mark.parametrize("name", ["lo\nss", "lüss", "x" * 300])
    def test_invalid_metric_name_is_an_error(self, attempt, name):
        with pytest.raises(ValueError, match="key"):
            script.report(1, {name: 1.0})

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
