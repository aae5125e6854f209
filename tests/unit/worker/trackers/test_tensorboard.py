"""Programs that write event files with the real writers, and the follower that reads them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter

from tests.support.tracker_clients import CLIENTS, Clients, run_program, version_of
from tests.support.tracker_spool import events, media
from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.wire.reports import MetricsBatch, ParametersReport
from trainyard.contract.wire.spool import parse_spool
from worker.trackers.artifacts import ArtifactFolder, file_part
from worker.trackers.event_claims import EventClaims
from worker.trackers.journal import Journal
from worker.trackers.tensorboard import TensorBoardFollower

MakeFollower = Callable[[], TensorBoardFollower]


pytestmark = pytest.mark.cpu_seconds(12)


class LateFollower(TensorBoardFollower):
    """Polls so late that each poll looks for new files."""

    def __init__(self, journal: Journal, artifacts: ArtifactFolder, roots: list[Path], claims: EventClaims) -> None:
        self.time = 0.0
        super().__init__(journal, artifacts, roots, claims, 1, now=lambda: self.time)

    def poll(self, *, last: bool = False) -> None:
        self.time += 10.0
        super().poll(last=last)


@pytest.fixture
def layout(tmp_path: Path) -> AttemptLayout:
    attempt = RunLayout(tmp_path / "job").attempt("1-a")
    attempt.code.mkdir(parents=True)
    return attempt


@pytest.fixture
def make(layout: AttemptLayout, tmp_path: Path) -> MakeFollower:
    def follower() -> TensorBoardFollower:
        artifacts = ArtifactFolder(tmp_path / "artifacts", limit=100_000)
        claims = EventClaims(layout, 0, shared=False)
        return LateFollower(Journal(layout, 0), artifacts, [layout.code], claims)

    return follower


@pytest.fixture
def follower(make: MakeFollower) -> TensorBoardFollower:
    return make()


def bodies(layout: AttemptLayout, execution: int = 1) -> list[Any]:
    path = layout.tracker_spool(execution, 0)
    return [record.body() for record in parse_spool(path)] if path.exists() else []


def points(layout: AttemptLayout, execution: int = 1) -> list[tuple[str, int, float]]:
    batches = [body for body in bodies(layout, execution) if isinstance(body, MetricsBatch)]
    return [(point.key, point.step, point.value) for batch in batches for point in batch.points]


def write(folder: Path, steps: range, tag: str = "loss") -> None:
    with SummaryWriter(str(folder)) as writer:
        for step in steps:
            writer.add_scalar(tag, step / 4, step)


def test_points_are_read_while_the_writer_is_open(follower: TensorBoardFollower, layout: AttemptLayout) -> None:
    writer = SummaryWriter(str(layout.code / "runs"))
    for step in range(3):
        writer.add_scalar("train/loss", step / 4, step)
        writer.flush()
        follower.poll()
        assert points(layout)[step:] == [("train/loss", step, step / 4)]
    writer.close()


def test_values_below_step_0_are_left_out(follower: TensorBoardFollower, layout: AttemptLayout) -> None:
    with SummaryWriter(str(layout.code / "runs")) as writer:
        for step in (-1, 0, 1):
            writer.add_scalar("loss", step, step)
            writer.add_text("note", "text", step)
    follower.poll()
    assert points(layout) == [("loss", 0, 0.0), ("loss", 1, 1.0)]
    assert [item.step for item in media(layout)] == [0, 1]
    assert [event.data for event in events(layout)] == [{"kind": "media_step"}]


def test_torn_records_are_completed(follower: TensorBoardFollower, layout: AttemptLayout, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", range(3))
    (source,) = (tmp_path / "elsewhere").iterdir()
    content, target = source.read_bytes(), layout.code / source.name
    for end in range(len(content) + 1):
        target.write_bytes(content[:end])
        follower.poll()
    assert points(layout) == [("loss", 0, 0.0), ("loss", 1, 0.25), ("loss", 2, 0.5)]


def test_further_runs_are_prefixed(follower: TensorBoardFollower, layout: AttemptLayout) -> None:
    with SummaryWriter(str(layout.code / "logs/version_0")) as writer:
        writer.add_scalar("loss", 1.0, 1)
        writer.add_scalars("parts", {"train": 2.0, "val": 3.0}, 1)
        writer.add_hparams({"lr": 0.5, "model": "gpt"}, {"hparam/accuracy": 4.0})
    follower.poll()
    write(layout.code / "logs/version_1", range(1, 2))
    follower.poll()
    assert sorted(points(layout)) == [
        ("hparam/accuracy", 0, 4.0),
        ("loss", 1, 1.0),
        ("parts_train/parts", 1, 2.0),
        ("parts_val/parts", 1, 3.0),
        ("version_1/loss", 1, 0.25),
    ]
    (described,) = [body for body in bodies(layout) if isinstance(body, ParametersReport)]
    assert described.parameters == {"lr": 0.5, "model": "gpt"}


def test_tags_of_runs_that_meet_stay_distinct(
    follower: TensorBoardFollower, layout: AttemptLayout, tmp_path: Path
) -> None:
    import numpy

    for folder, tag, colour in (("logs", "inner/a", 0), ("logs/inner", "a", 255)):
        with SummaryWriter(str(layout.code / folder)) as writer:
            writer.add_scalar(tag, colour, 1)
            writer.add_image(tag, numpy.full((3, 2, 2), colour, "uint8"), 1)
        follower.poll()
    (plain, _, zero), (other, _, full) = points(layout)
    assert (plain, zero, other.startswith("inner/a~"), full) == ("inner/a", 0, True, 255)
    first, second = media(layout)
    assert (first.key, second.key) == (plain, other)
    assert (tmp_path / str(first.path)).read_bytes() != (tmp_path / str(second.path)).read_bytes()


def test_the_first_values_may_be_those_of_a_sub_folder(follower: TensorBoardFollower, layout: AttemptLayout) -> None:
    writer = SummaryWriter(str(layout.code / "logs/run"))
    writer.add_hparams({"lr": 0.5}, {"hparam/accuracy": 4.0})
    writer.add_scalars("parts", {"train": 2.0}, 1)
    for part in writer.all_writers.values():
        part.flush()
    follower.poll()
    writer.add_scalar("loss", 1.0, 1)
    writer.close()
    follower.poll()
    assert sorted(points(layout)) == [("hparam/accuracy", 0, 4.0), ("loss", 1, 1.0), ("parts_train/parts", 1, 2.0)]


def test_runs_named_by_times_stay_apart(follower: TensorBoardFollower, layout: AttemptLayout) -> None:
    for name in ("1795744258", "1795744300"):
        write(layout.code / "logs" / name, range(1))
        follower.poll()
    assert points(layout) == [("loss", 0, 0.0), ("1795744300/loss", 0, 0.0)]


def test_media_are_reported_with_their_tags_and_steps(
    follower: TensorBoardFollower, layout: AttemptLayout, tmp_path: Path
) -> None:
    import numpy
    import torch

    with SummaryWriter(str(layout.code / "runs")) as writer:
        writer.add_image("samples/../first %", numpy.zeros((3, 4, 4), "uint8"), 5)
        writer.add_text("note", "some *text*", 6)
        writer.add_audio("voice", torch.zeros(1, 16), 7)
        writer.add_histogram("weights/0", numpy.arange(9.0), 5)
    follower.poll()
    image = f"artifacts/samples/{file_part('..')}/{file_part('first %')}/5.png"
    assert (tmp_path / image).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "artifacts/note/6.txt").read_text() == "some *text*"
    assert (tmp_path / "artifacts/voice/7.wav").read_bytes().startswith(b"RIFF")
    items = {item.key: item for item in media(layout)}
    assert {key: (item.step, item.type, item.path) for key, item in items.items()} == {
        "samples/../first %": (5, "image", image),
        "note": (6, "text", "artifacts/note/6.txt"),
        "voice": (7, "audio", "artifacts/voice/7.wav"),
        "weights/0": (5, "histogram", None),
    }
    drawn = items["weights/0"].histogram
    assert drawn is not None
    assert sum(drawn.values) == 9
    assert drawn.bins[0] <= 0 < 8 <= drawn.bins[-1]
    assert points(layout) == []


def test_files_of_earlier_attempts_are_not_read_again(make: MakeFollower, layout: AttemptLayout) -> None:
    write(layout.code / "runs", range(3))
    follower = make()
    follower.poll()
    assert points(layout) == []
    write(layout.code / "runs", range(3, 5))
    follower.poll()
    assert points(layout) == [("loss", 3, 0.75), ("loss", 4, 1.0)]


def test_restart_begins_after_what_is_written(follower: TensorBoardFollower, layout: AttemptLayout) -> None:
    write(layout.code / "runs/a", range(4))
    follower.begin(2)
    follower.poll()
    write(layout.code / "runs/b", range(2, 5))
    follower.poll()
    assert points(layout, 1) == [("loss", step, step / 4) for step in range(4)]
    assert points(layout, 2) == [("loss", step, step / 4) for step in range(2, 5)]


def test_damaged_file_ends_with_one_statement(
    follower: TensorBoardFollower, layout: AttemptLayout, caplog: pytest.LogCaptureFixture
) -> None:
    write(layout.code / "runs", range(3))
    (path,) = (layout.code / "runs").iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for _ in range(3):
        follower.poll(last=True)
    assert [step for _, step, _ in points(layout)] == [0, 1]
    (statement,) = caplog.messages
    assert "wrong checksum" in statement


def test_values_of_tensorflow_are_points(follower: TensorBoardFollower, layout: AttemptLayout) -> None:
    writer = EventFileWriter(str(layout.code / "logs"))
    for step in range(2):
        value = Summary.Value(tag="epoch_loss")
        value.tensor.dtype, value.tensor.float_val[:] = 1, [0.5]
        if step == 0:
            value.metadata.plugin_data.plugin_name = "scalars"
        writer.add_event(Event(step=step, summary=Summary(value=[value])))
    writer.close()
    follower.poll()
    assert points(layout) == [("epoch_loss", 0, 0.5), ("epoch_loss", 1, 0.5)]


@pytest.mark.parametrize("clients", CLIENTS)
def test_rest_is_read_after_the_end_of_the_program(
    follower: TensorBoardFollower, layout: AttemptLayout, clients: Clients
) -> None:
    follower.start()
    program = "import tensorboard; print('client', tensorboard.__version__)\n"
    program += "from torch.utils.tensorboard import SummaryWriter as W\nwith W('runs') as w:\n"
    program += "    for step in range(2500): w.add_scalar('loss', 1.0, step)"
    output = run_program(program, layout.code, {}, clients)
    assert f"client {version_of(clients, 'tensorboard')}" in output
    follower.close(30)
    assert [step for _, step, _ in points(layout)] == list(range(2500))


def test_deleted_log_folder_ends_nothing(follower: TensorBoardFollower, layout: AttemptLayout) -> None:
    write(layout.code / "runs", range(1))
    follower.poll()
    shutil.rmtree(layout.code / "runs")
    follower.poll()
    write(layout.code / "other", range(1, 2), "accuracy")
    follower.poll()
    assert [key for key, _, _ in points(layout)] == ["loss", "other/accuracy"]
