"""What the listener keeps in memory of the models that a program logs and registers."""

from typing import Any

import pytest

from trainyard.contract.layout import AttemptLayout
from worker.trackers.journal import Journal
from worker.trackers.mlflow_models import MlflowModels
from worker.trackers.tracker_requests import Reporter, TrackerError

REPORTER = Reporter(1, 0)


@pytest.fixture
def models(layout: AttemptLayout) -> MlflowModels:
    return MlflowModels(Journal(layout, 0))


def send(models: MlflowModels, method: str, path: str, **body: Any) -> dict[str, Any]:
    carry_out = models.route(method, path)
    assert carry_out is not None
    return carry_out(REPORTER, body)


def test_the_newest_models_can_be_read_back(models: MlflowModels) -> None:
    ids = [send(models, "POST", "logged-models", name="m")["model"]["info"]["model_id"] for _ in range(1001)]
    assert send(models, "GET", f"logged-models/{ids[1]}")["model"]["info"]["model_id"] == ids[1]
    with pytest.raises(TrackerError, match="there is no model"):
        send(models, "GET", f"logged-models/{ids[0]}")


def test_the_newest_versions_keep_their_numbers(models: MlflowModels) -> None:
    send(models, "POST", "registered-models/create", name="m")
    for _ in range(1001):
        last = send(models, "POST", "model-versions/create", name="m")["model_version"]["version"]
    assert last == "1001"
    assert send(models, "GET", "model-versions/get", name="m", version="2")["model_version"]["version"] == "2"
    with pytest.raises(TrackerError, match="there is no version '1'"):
        send(models, "GET", "model-versions/get", name="m", version="1")


def test_registered_models_are_bounded(models: MlflowModels) -> None:
    for number in range(1000):
        send(models, "POST", "registered-models/create", name=str(number))
    with pytest.raises(TrackerError, match="at most 1000 models"):
        send(models, "POST", "registered-models/create", name="one more")
