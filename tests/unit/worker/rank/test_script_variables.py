"""The variables of a program."""

from pathlib import Path

from trainyard.contract.layout import RunLayout
from worker.rank.script import script_variables


def test_a_program_gets_folders_that_exist(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "job").attempt("1-a")
    variables = script_variables({"PYTHONSAFEPATH": "1", "OTHER": "x"}, layout, None)
    assert variables == {
        "OTHER": "x",
        "TRAINYARD_ATTEMPT_FOLDER": str(layout.root),
        "TRAINYARD_CHECKPOINT_DIR": str(tmp_path / "job" / "checkpoints"),
        "TRAINYARD_ARTIFACT_DIR": str(tmp_path / "job" / "artifacts"),
        "TRAINYARD_RESUMED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    assert Path(variables["TRAINYARD_CHECKPOINT_DIR"]).is_dir()
    assert Path(variables["TRAINYARD_ARTIFACT_DIR"]).is_dir()
