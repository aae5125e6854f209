"""Run files that clients of W&B wrote: what is in them, and that nothing is stored twice or lost beside the stream."""

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tracker_spool import parameters, points
from trainyard.contract.layout import AttemptLayout, RunLayout
from worker.trackers.journal import Journal
from worker.trackers.wandb_file import HISTORY, RunFile, parse_history
from worker.trackers.wandb_history import StepMetrics
from worker.trackers.wandb_remainder import NotedFile, NotedFiles, RunFileRemainder
from worker.trackers.wandb_runs import WandbRun

RECORDED = Path(__file__).parent / "run_files"
VERSIONS = ["0.19.11", "0.31.0"]
"""The client that wrote each file."""
DEFINED = [{"1": "train/*"}, {"2": "train/*", "4": "batch"}, {"1": "val", "4": "epoch"}]
LOSSES = [("train/loss", step * 10, 1 / (step + 1)) for step in range(20)]
VALUES = [("val", step // 5, step / 2) for step in range(20)]


@pytest.fixture(params=VERSIONS)
def content(request: pytest.FixtureRequest) -> bytes:
    return gzip.decompress((RECORDED / f"{request.param}.wandb.gz").read_bytes())


@pytest.fixture
def grown(tmp_path: Path) -> Iterator[RunFile]:
    """An open file that the tests fill."""
    path = tmp_path / "run-recorded.wandb"
    path.touch()
    file = RunFile(str(path), str(path))
    yield file
    file.close()


def made_run(layout: AttemptLayout, file: RunFile | None = None) -> WandbRun:
    run = WandbRun(Journal(layout, 0), 1, "", name="run", project="", resumes_at=0, report_media=lambda objects: None)
    if file:
        run.attach(file)
    return run


def lines_of(content: bytes, path: Path) -> list[dict[str, object]]:
    path.write_bytes(content)
    file = RunFile(str(path), str(path))
    lines = [parse_history(message) for kind, message, _ in file.unread() if kind == HISTORY]
    file.close()
    return lines


def check(layout: AttemptLayout) -> None:
    """Check that all points of the recorded program are stored once, and at the steps of their definitions."""
    stored = points(layout)
    assert sorted(point for point in stored if point[0] == "train/loss") == LOSSES
    assert sorted(point for point in stored if point[0] == "val") == VALUES
    assert sorted(point for point in stored if point[0] == "nested.a") == [
        ("nested.a", step, step) for step in range(20)
    ]
    assert [step for key, step, value in stored if key == "nan" and value != value] == [20]


def test_file_alone_has_the_whole_run(content: bytes, grown: RunFile, layout: AttemptLayout) -> None:
    Path(grown.path).write_bytes(content)
    run = made_run(layout, grown)
    run.read_file()
    run.end()
    check(layout)
    assert [point for point in points(layout) if point[0] == "best"] == [("best", 190, 0.25)]
    assert parameters(layout) == {"lr": 0.1, "model.depth": 2}
    assert grown.ended


@pytest.mark.parametrize("seed", range(5))
def test_split_repeated_and_late_sources_change_nothing(
    content: bytes, grown: RunFile, layout: AttemptLayout, tmp_path: Path, seed: int
) -> None:
    """The stream repeats and skips requests and may lack the end, the file grows by any number of bytes."""
    random_ = random.Random(seed)
    lines = lines_of(content, tmp_path / "whole.wandb")
    run = made_run(layout, grown)
    size, path = 0, Path(grown.path)
    for _ in range(40):
        action = random_.randrange(3)
        if action == 0:
            first = random_.randrange(len(lines))
            run.stream(first, lines[first : first + random_.randrange(5)])
        elif action == 1:
            size = min(len(content), size + random_.randrange(6000))
            path.write_bytes(content[:size])
            run.read_file()
        else:
            run.define(StepMetrics.parse(DEFINED[: random_.randrange(4)]))
    path.write_bytes(content)
    run.read_file()
    run.define(StepMetrics.parse(DEFINED))
    check(layout)


@pytest.mark.parametrize("seed", range(5))
def test_stream_alone_is_complete_without_a_file(
    content: bytes, layout: AttemptLayout, tmp_path: Path, seed: int
) -> None:
    random_ = random.Random(seed)
    lines = json.loads(json.dumps(lines_of(content, tmp_path / "whole.wandb")))
    run = made_run(layout)
    chunks = [(first, lines[first : first + 3]) for first in range(0, len(lines), 2)]
    chunks += random_.sample(chunks, 4)
    random_.shuffle(chunks)
    defined_at = random_.randrange(len(chunks))
    for index, chunk in enumerate(chunks):
        run.stream(*chunk)
        if index == defined_at:
            run.define(StepMetrics.parse(DEFINED))
    stored = points(layout)
    assert sorted(point for point in stored if point[0] == "train/loss") == LOSSES
    assert sorted(point for point in stored if point[0] == "val") == VALUES


def test_nothing_is_read_beyond_a_damaged_byte(content: bytes, grown: RunFile, layout: AttemptLayout) -> None:
    position = content.index(b'"lr"') if b'"lr"' in content else content.index(b"lr")
    damaged = bytes([content[position] ^ 1])
    Path(grown.path).write_bytes(content[:position] + damaged + content[position + 1 :])
    run = made_run(layout, grown)
    run.read_file()
    assert not layout.tracker_spool(1, 0).exists() or points(layout) == []
    Path(grown.path).write_bytes(content)
    run.read_file()
    check(layout)


def test_next_attempt_reads_what_a_killed_launcher_had_not(
    content: bytes, layout: AttemptLayout, tmp_path: Path
) -> None:
    path = tmp_path / "whole.wandb"
    run = made_run(layout)
    run.define(StepMetrics.parse(DEFINED))
    run.stream(0, lines_of(content, path)[:5])
    NotedFiles(layout, 0).add(NotedFile(str(path), "", 0))
    job = RunLayout(layout.root.parent.parent)
    job.checkpoints.mkdir()
    (job.checkpoints / "state").touch()
    following = job.attempt("2-a")
    following.root.mkdir()
    remainder = RunFileRemainder.find(following)
    assert remainder is not None
    Journal(following, 0).add_unread(2, "wandb", remainder.values)
    assert [point for point in points(following, 2) if point[0] == "train/loss"] == LOSSES[5:]
    Journal(following, 0).add_unread(3, "wandb", remainder.values)
    assert not following.tracker_spool(3, 0).exists() or points(following, 3) == []
