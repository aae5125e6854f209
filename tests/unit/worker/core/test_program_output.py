"""What a program writes in its working directory reaches its next attempt, whenever a launcher is killed."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from trainyard.contract.layout import AttemptLayout, RunLayout
from worker.core import program_output
from worker.core.program_output import enter_work, has_output, newest_output, sees_work, take_output

UPLOADED = {"train.py": "pass", "out/README": "results"}
"""The files of the user's code."""


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "job_1")


def unpack(run: RunLayout, number: int) -> AttemptLayout:
    """Write the uploaded files of an attempt, as its launcher does first of all."""
    layout = run.attempt(f"{number}-x")
    layout.code.mkdir(parents=True)
    write(layout, **UPLOADED)
    return layout


def begin(run: RunLayout, number: int, keep: Sequence[str] = ()) -> AttemptLayout:
    layout = unpack(run, number)
    take_output(layout, keep)
    enter_work(layout)
    return layout


def folder_of(layout: AttemptLayout) -> Path:
    return layout.code if layout.code.exists() else layout.work


def write(layout: AttemptLayout, **files: str) -> None:
    for name, text in files.items():
        path = folder_of(layout) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def output_of(layout: AttemptLayout) -> dict[str, str]:
    """Return the files that were not uploaded, with their content."""
    folder = folder_of(layout)
    paths = (path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in paths}
    return {name: text for name, text in files.items() if UPLOADED.get(name) != text}


def test_usual_and_named_paths_reach_the_next_attempt(run: RunLayout) -> None:
    first = begin(run, 1, ["state.pt", "deep/er"])
    write(
        first, **{"out/ckpt.pt": "1", "lightning_logs/v0/a.csv": "2", "state.pt": "3", "deep/er/x": "4", "other": "5"}
    )
    second = begin(run, 2, ["state.pt", "deep/er"])
    expected = {"out/ckpt.pt": "1", "lightning_logs/v0/a.csv": "2", "state.pt": "3", "deep/er/x": "4"}
    assert output_of(second) == expected
    assert output_of(first) == {"other": "5"}
    assert (run.work / "out" / "ckpt.pt").read_text() == "1"
    assert output_of(begin(run, 3, ["state.pt", "deep/er"])) == expected


def test_paths_are_those_of_the_folder_in_which_the_program_starts(run: RunLayout) -> None:
    for number in (1, 2):
        layout = unpack(run, number)
        take_output(layout, ["state.pt"], "exp")
        enter_work(layout)
        if number == 1:
            assert not has_output(layout)
            write(layout, **{"exp/state.pt": "1", "exp/out/a": "2", "runs/b": "3", "state.pt": "4", "exp/c": "5"})
    assert output_of(layout) == {"exp/state.pt": "1", "exp/out/a": "2", "runs/b": "3"}
    assert has_output(layout)


def test_what_the_program_deleted_or_changed_stays_so(run: RunLayout) -> None:
    first = begin(run, 1)
    write(first, **{"out/a": "1", "out/README": "changed"})
    second = begin(run, 2)
    assert output_of(second) == {"out/a": "1", "out/README": "changed"}
    (second.work / "out" / "a").unlink()
    assert output_of(begin(run, 3)) == {"out/README": "changed"}


def test_attempts_that_never_started_are_skipped(run: RunLayout) -> None:
    write(begin(run, 1), **{"out/a": "1"})
    for number in (2, 3):
        run.attempt(f"{number}-x").root.mkdir()
    assert output_of(begin(run, 10)) == {"out/a": "1"}


@pytest.mark.parametrize("moved", range(5))
@pytest.mark.parametrize("killed", [1, 2])
def test_launcher_that_is_killed_while_it_moves_loses_nothing(
    run: RunLayout, moved: int, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"out/a": "1", "outputs/b": "2", "runs/c": "3"}
    write(begin(run, 1), **files)
    rename = Path.rename
    for number in range(2, 2 + killed):
        layout, calls = unpack(run, number), []

        def stop(path: Path, target: Path, calls: list[Path] = calls) -> Path:
            calls.append(path)
            if len(calls) > moved:
                raise KeyboardInterrupt
            return rename(path, target)

        monkeypatch.setattr(program_output.Path, "rename", stop)
        # After four of five renames the next launcher has three, and one of the folder.
        with suppress(KeyboardInterrupt):
            take_output(layout, ())
            enter_work(layout)
        monkeypatch.undo()
        assert len(calls) > min(moved, 3)
    assert output_of(begin(run, 2 + killed)) == files


def test_absolute_paths_stay_valid(run: RunLayout) -> None:
    first = begin(run, 1)
    write(first, **{"out/a": "1"})
    latest = first.work / "out" / "latest"
    latest.symlink_to(first.work / "out" / "a")
    second = begin(run, 2)
    assert second.work == first.work
    assert latest.read_text() == "1"


@pytest.mark.parametrize("stopped", [0, 1])
def test_launcher_that_starts_again_goes_on(run: RunLayout, stopped: int) -> None:
    first, second = begin(run, 1), unpack(run, 2)
    write(first, other="of attempt 1")
    take_output(second, ())
    if stopped:
        first.work.rename(first.code)
    for _ in range(2):
        enter_work(second)
        assert (output_of(first), output_of(second)) == ({"other": "of attempt 1"}, {})
        assert folder_of(second) == run.work


def test_folder_of_no_attempt_is_not_lost(run: RunLayout) -> None:
    layout = unpack(run, 1)
    take_output(layout, ())
    run.work.mkdir()
    with pytest.raises(FileExistsError, match="belongs to no attempt of this job; rename it"):
        enter_work(layout)


def test_node_sees_the_directory_of_its_attempt_alone(run: RunLayout) -> None:
    first, second = begin(run, 1), unpack(run, 2)
    assert not sees_work(second)
    take_output(second, ())
    assert (sees_work(first), sees_work(second)) == (True, False)
    first.work.rename(first.code)
    assert (sees_work(first), sees_work(second)) == (False, False)
    enter_work(second)
    assert (sees_work(first), sees_work(second)) == (False, True)


def test_link_is_moved_and_not_followed(run: RunLayout, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    first = begin(run, 1)
    (first.work / "outputs").symlink_to(tmp_path / "far")
    second = begin(run, 2)
    assert os.readlink(second.work / "outputs") == str(tmp_path / "far")
    assert (tmp_path / "far").is_dir()


def test_program_resumes_if_named_paths_have_files_that_it_wrote(run: RunLayout) -> None:
    first = begin(run, 1, ["out"])
    # The upload has a file there, which is no sign of an earlier start.
    assert not has_output(first)
    os.utime(first.output, ns=(10, 10))
    os.utime(first.work / "out" / "README", ns=(9, 9))
    assert not has_output(first)
    write(first, **{"out/ckpt.pt": "1"})
    assert has_output(first)  # as after a restart of the ranks in place
    assert has_output(begin(run, 2, ["out"]))
    assert has_output(begin(run, 3, ["out/ckpt.pt"]))
    assert not has_output(begin(run, 4))  # what is usual may be logs alone


def test_newest_checkpoint_is_a_file_of_a_checkpoint_by_name(run: RunLayout) -> None:
    layout = begin(run, 1, ["mine"])
    assert newest_output(layout) is None
    for seconds, name in enumerate(
        ["out/a.pt", "lightning_logs/v/epoch=1.ckpt", "mine/m.safetensors", "out/log.csv", "b.pt"]
    ):
        write(layout, **{name: ""})
        os.utime(layout.work / name, (seconds + 1, seconds + 1))
    assert newest_output(layout) == 3
