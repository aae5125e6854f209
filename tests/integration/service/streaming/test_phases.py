"""The phase of a run: stored with its progress, streamed without points, and counted in the ETA."""

import pytest

from service.core.errors import NotFoundError
from service.streaming.job_stream import read_job_stream
from tests.support.world import World

pytestmark = pytest.mark.databases("both")

STEPS = {"step": 20, "total_steps": 20, "seconds_per_step": 1.0}


def stream(world: World, job: str, after: int) -> list[dict[str, object]]:
    run = world.app_state.run_layout(job)
    part = read_job_stream(world.database, job, after, run=run, logs=True, now=world.clock())
    return [{"type": message.type, **message.data.model_dump(mode="json")} for message in part.messages]


def test_phase_without_points_is_shown_and_streamed(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("train/loss", 20, 1.0)], progress={**STEPS, "phase": "training", "seconds_left": 41.0})
    assert world.job(job)["progress"]["eta_seconds"] == 41.0
    after = world.job(job)["sequence"]
    evaluating = {**STEPS, "phase": "evaluating", "phase_done": 120, "phase_total": 800, "seconds_left": 30.5}
    assert worker.metrics([], progress=evaluating).status_code == 200
    world.clock.advance(2)
    progress = world.job(job)["progress"]
    assert (progress["phase"], progress["phase_done"], progress["phase_total"]) == ("evaluating", 120, 800)
    assert progress["eta_seconds"] == pytest.approx(28.5, abs=0.01)
    [update] = stream(world, job, after)
    assert (update["type"], update["points"], update["execution"]) == ("metrics", [], 1)
    assert update["progress"]["phase"] == "evaluating"  # type: ignore[index]
    worker.metrics([], progress={**STEPS, "phase": "exporting"})
    assert world.job(job)["progress"]["eta_seconds"] is None, "how long an export takes is unknown"
    worker.end("completed", step=20)
    world.tick()
    assert world.job(job)["status"] == "succeeded"
    assert world.job(job)["progress"]["phase"] is None
    with pytest.raises(NotFoundError):
        stream(world, "job_" + "0" * 26, 0)


def test_programs_that_report_no_estimate_have_that_of_their_steps(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("train/loss", 5, 1.0)], progress={"step": 5, "total_steps": 20, "seconds_per_step": 2.0})
    assert world.job(job)["progress"]["eta_seconds"] == 30.0
    after = world.job(job)["sequence"]
    assert stream(world, job, after) == []


def test_resumed_job_has_no_estimate_of_before_its_pause(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("train/loss", 2, 1.0)], progress={**STEPS, "step": 2, "phase": "saving", "seconds_left": 41.0})
    world.client.post(f"/v1/jobs/{job}/pause")
    world.tick()
    worker.end("paused", step=2)
    world.tick()
    assert world.job(job)["status"] == "paused"
    world.clock.advance(3600)
    world.client.post(f"/v1/jobs/{job}/resume")
    world.tick(2)
    worker = world.start(job)
    shown = world.job(job)["progress"]
    assert (shown["step"], shown["eta_seconds"], shown["seconds_per_step"], shown["phase"]) == (2, None, None, None)
    worker.metrics([("train/loss", 3, 1.0)], progress={**STEPS, "step": 3, "seconds_left": 17.0})
    assert world.job(job)["progress"]["eta_seconds"] == 17.0


@pytest.mark.parametrize("wrong", [{"phase": "resting"}, {"phase_done": -1}, {"phase_total": 2**54}])
def test_other_phases_are_refused(world: World, wrong: dict[str, object]) -> None:
    worker = world.start(world.submit())
    assert worker.metrics([], progress={**STEPS, **wrong}).status_code == 422
