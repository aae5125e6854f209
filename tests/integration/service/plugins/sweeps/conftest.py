"""Searches in a whole service: trials are started, report values, pause at rungs and end."""

import importlib
from typing import Any

import pytest

from tests.support.world import SPEC, World

SEARCH_SPEC: dict[str, Any] = {**SPEC, "gpus": 1, "steps": 27, "evaluation": {"every_steps": 1}}


class SearchLab:
    """A search whose trials' losses are a function of their values and the step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.id = ""

    def submit(self, *, max_parallel: int = 2, spec: dict[str, Any] | None = None, **search: Any) -> dict[str, Any]:
        search.setdefault("space", {"optimizer.lr": "log:1e-4:1e-1"})
        body = {"spec": spec or SEARCH_SPEC, "search": search, "max_parallel": max_parallel}
        answer = self.world.client.post("/v1/sweeps", json=body)
        assert answer.status_code == 201, answer.text
        self.id = answer.json()["id"]
        made: dict[str, Any] = answer.json()
        return made

    def read(self) -> dict[str, Any]:
        detail: dict[str, Any] = self.world.client.get(f"/v1/sweeps/{self.id}").json()
        return detail

    def loss(self, values: dict[str, Any], step: int) -> float:
        return abs(values["optimizer.lr"] - 0.01) + 1.0 / step

    def work(self) -> None:
        """Let every pending trial start, report its loss and end at its next pause, or complete."""
        world = self.world
        for member in self.read()["members"]:
            if member["status"] != "pending":
                continue
            job = member["job_id"]
            worker = world.worker(job)
            worker.execution = worker.claim().json()["execution"]
            launch = world.launch_document(job)
            step = launch.pause_at_step or 27
            worker.metrics([("eval/loss", step, self.loss(member["values"], step))])
            worker.checkpoint(step)
            world.clock.advance(step)
            assert worker.finish("paused" if launch.pause_at_step else "completed", step=step).status_code == 200
            world.scheduler.end(launch.tag)

    def run(self, rounds: int = 80) -> dict[str, Any]:
        """Run the search to its end."""
        for _ in range(rounds):
            self.world.search()
            self.world.tick()
            self.work()
            self.world.tick(2)
            if (detail := self.read())["state"] != "running":
                return detail
        raise AssertionError(f"the search did not end: {self.read()}")


@pytest.fixture
def lab(world: World) -> SearchLab:
    # The first search would import scikit-learn, which takes more processor time than the search.
    importlib.import_module("optuna.importance")
    return SearchLab(world)
