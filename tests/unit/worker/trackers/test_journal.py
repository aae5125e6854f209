"""The progress of a program that a tracker describes."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.tracker_spool import bodies, events
from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.wire.reports import MetricsBatch
from worker.trackers.journal import Journal, TrackedValue, trainer_steps

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
    journal.log(1, "wandb", [TrackedValue(name, 1.0, 1, datetime.now(UTC)) for name in ("acc@1", "acc@5")])
    journal.close()
    (event,) = events(layout)
    assert event.message == "Metric name 'acc@1' is stored as 'acc_1'; others are changed in the same way"


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
