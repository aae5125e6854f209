"""The folder of an attempt whose program reports to trackers, and a listener for MLflow's client."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from trainyard.contract.layout import AttemptLayout, RunLayout
from worker.trackers.artifacts import ArtifactFolder
from worker.trackers.journal import Journal
from worker.trackers.listener import TrackerListener
from worker.trackers.mlflow import MlflowApi
from worker.trackers.tracker_requests import Reporter
from worker.trackers.variables import tracker_token


@pytest.fixture
def layout(tmp_path: Path) -> AttemptLayout:
    attempt = RunLayout(tmp_path / "job").attempt("1-a")
    attempt.root.mkdir(parents=True)
    return attempt


@pytest.fixture
def listener(layout: AttemptLayout) -> Iterator[TrackerListener]:
    artifacts = ArtifactFolder(RunLayout(layout.root.parent.parent).artifacts / "mlflow", limit=100_000)
    made = TrackerListener(MlflowApi(Journal(layout, 0), artifacts).handle, lambda: None)
    made.start()
    yield made
    made.close()


@pytest.fixture
def call(listener: TrackerListener) -> Callable[..., httpx.Response]:
    """Return a function that sends a request as a client of execution 1."""

    def send(method: str, path: str, token: str = "", **arguments: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token or tracker_token(listener.secret, Reporter(1, 0))}".encode()}
        return httpx.request(method, listener.url + path, headers=headers, trust_env=False, **arguments)

    return send
