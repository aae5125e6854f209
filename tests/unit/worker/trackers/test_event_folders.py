"""Where event files are searched for."""

from pathlib import Path

from worker.trackers.event_folders import event_paths, log_folders


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def test_folders_of_the_program_and_of_its_variables(tmp_path: Path) -> None:
    variables = {"TENSORBOARD_LOGDIR": "logs", "TENSORBOARD_LOGGING_DIR": "/elsewhere"}
    assert log_folders(tmp_path, tmp_path / "checkpoints", variables) == [
        tmp_path,
        tmp_path / "checkpoints",
        tmp_path / "logs",
        Path("/elsewhere"),
    ]


def test_each_event_file_is_listed_once(tmp_path: Path) -> None:
    expected = [touch(tmp_path / "events.out.tfevents.1.a"), touch(tmp_path / "runs/x/events.out.tfevents.2.a")]
    touch(tmp_path / "runs/x/other.txt")
    listed = event_paths([tmp_path, tmp_path / "runs", tmp_path / "absent"])
    assert [(one.path, one.size) for one in listed] == [(path, 1) for path in expected]


def test_links_and_folders_of_tools_are_not_entered(tmp_path: Path) -> None:
    outside = touch(tmp_path / "outside/events.out.tfevents.1.a")
    root = tmp_path / "code"
    touch(root / "env/pyvenv.cfg")
    for folder in (".git", "node_modules", "env/lib"):
        touch(root / folder / "events.out.tfevents.1.a")
    (root / "link").symlink_to(outside.parent)
    (root / "events.out.tfevents.2.a").symlink_to(outside)
    assert event_paths([root]) == []


def test_walk_is_bounded(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"abcdefghij")
    touch(deep / "events.out.tfevents.1.a")
    assert event_paths([tmp_path]) == []
    assert len(event_paths([deep.parents[2]])) == 1
    for number in range(2500):
        (tmp_path / "wide" / f"{number:04}").mkdir(parents=True)
    touch(tmp_path / "wide/0000/events.out.tfevents.1.a")
    touch(tmp_path / "wide/2499/events.out.tfevents.1.a")
    assert [one.path.parent.name for one in event_paths([tmp_path / "wide"])] == ["0000"]
