"""The progress line of a watched run: no number is cut in any width, and the last line has all of them."""

import io
import re

import pytest
from rich.cells import cell_len

from tests.unit.trainyard.fake_service import TIME, job
from trainyard.cli import live_view as watching
from trainyard.cli.output import sanitize
from trainyard.cli.tables import TerminalConsole
from trainyard.client import StreamEvent
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.stream_events import MetricsUpdate, StatusUpdate

VALUES = {
    "train/loss": 7.9e-05,
    "eval/loss": 0.01234,
    "eval/accuracy": 0.98891,
    "perf/examples_per_second": 4559.0,
}
PARTS = ["step 500/500", "train loss 7.9e-05", "eval loss 0.01234", "accuracy 0.9889", "4,559 examples/s"]


def shown(monkeypatch: pytest.MonkeyPatch, width: int) -> tuple[list[str], list[str]]:
    """What a terminal is sent of a whole run: each line of before the end, and the lines that stay."""
    sent = io.StringIO()
    screen = TerminalConsole(file=sent, force_terminal=True, width=width, markup=False)
    monkeypatch.setattr(watching, "console", lambda: screen)
    progress = {"step": 500, "total_steps": 500}
    points = [{"key": key, "step": 500, "value": value, "time": TIME} for key, value in VALUES.items()]
    update = MetricsUpdate.model_validate(
        {"execution": 1, "resumed_from_step": 0, "progress": progress, "points": points}
    )
    ended = StatusUpdate.model_validate({"status": "succeeded", "status_message": "completed"})
    with watching.LiveView(JobResource.model_validate(job(status="running"))) as view:
        view.show(StreamEvent("1", "metrics", update))
        view.show(StreamEvent("2", "status", ended))
        view._bar.refresh()
        before = sent.tell()
    text = sent.getvalue()
    live, last = (sanitize(part).splitlines() for part in (text[:before], text[before:]))
    return live, [line for line in last if line.strip()]


def parts_of(line: str) -> list[str]:
    return [part for part in re.split(r"\s{2,}", re.sub(r"^\S*\s*[━╸╺ ]+", "", line).strip()) if part]


@pytest.mark.parametrize("width", [120, 100, 80, 72, 66, 60, 45, 30])
def test_parts_that_do_not_fit_are_omitted_and_printed_at_the_end(monkeypatch, width):
    live, last = shown(monkeypatch, width)
    assert all(cell_len(line) <= width for line in (*live, *last))
    frames = [line for line in live if "step 500/500" in line]
    assert frames or width < 40
    assert all(parts_of(line) == PARTS[: len(parts_of(line))] for line in frames)
    printed = " ".join(" ".join(line.split()) for line in last)
    assert [part for part in PARTS if part in printed] == PARTS


@pytest.mark.parametrize(
    ("room", "line"), [(40, "step 1/2  loss 0.5  7 x/s"), (24, "step 1/2  loss 0.5"), (8, "step 1/2"), (7, ""), (0, "")]
)
def test_line_has_only_whole_parts(room, line):
    assert watching.fit_line(["step 1/2", "loss 0.5", "7 x/s"], room) == line


@pytest.mark.parametrize(
    ("room", "lines"),
    [
        (40, ["step 1/2  loss 0.5  7 x/s"]),
        (24, ["step 1/2  loss 0.5", "7 x/s"]),
        (9, ["step 1/2", "loss 0.5", "7 x/s"]),
        (3, ["step 1/2", "loss 0.5", "7 x/s"]),
    ],
)
def test_lines_break_between_parts(room, lines):
    assert watching.wrap_lines(["step 1/2", "loss 0.5", "7 x/s"], room) == lines
