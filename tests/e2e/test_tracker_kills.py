"""Reports through three trackers are complete although the service and the rank are killed again and again."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support.live import wait_for_status
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SERVICE_KILLS = 20
RANK_KILLS = 5
PROGRAM = """
import os, pathlib, signal, time
import mlflow, wandb
from torch.utils.tensorboard import SummaryWriter

folder = pathlib.Path(os.environ["TRAINYARD_CHECKPOINT_DIR"])
end = pathlib.Path(os.environ["END"])
mark = folder / "step"
start = step = int(mark.read_text()) if mark.exists() else 0
run = wandb.init()
writer = SummaryWriter("runs")
mlflow.start_run()
while step == start or not end.exists() or len(list(folder.glob("killed-*"))) < int(os.environ["KILLS"]):
    step += 1
    value = step + 1 / step
    mlflow.log_metric("mlflow", value, step=step)
    run.log({"wandb": value}, step=step)
    writer.add_scalar("tensorboard", value, step)
    if step % 40 == 0:
        # A checkpoint after which nothing is repeated: wandb sends a step with the next one, within a second.
        (folder / "new").write_text(str(step))
        (folder / "new").rename(mark)
    killed = folder / f"killed-{step}"
    if step % 80 == 65 and step < 80 * int(os.environ["KILLS"]) and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
run.finish()
print("last step", step, flush=True)
"""


@pytest.mark.timeout(900)
def test_no_point_is_lost_or_doubled_by_kills(service: ServiceProcess, client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    end = tmp_path / "end"
    spec = {
        "name": "killed",
        "task": "script",
        "argv": ["train.py"],
        "restart": {"max_retries": 8},
        "environment": {"variables": {"END": str(end), "KILLS": str(RANK_KILLS)}},
    }
    job = client.submit(spec, code=tmp_path)

    def last_step() -> int:
        return max((series.steps[-1] for series in client.metrics(job.id).series), default=0)

    def has_moved(before: int) -> bool:
        return last_step() > before

    wait_until(partial(has_moved, 0), 60, "the first point")
    for _ in range(SERVICE_KILLS):
        before = last_step()
        service.kill()
        service.start()
        service.client().close()
        wait_until(partial(has_moved, before), 60, "a new point")
    end.touch()
    done = wait_for_status(client, job.id, "succeeded", "failed")
    assert done.status == "succeeded", done.status_message
    restarts = [event for event in client.events(job.id) if event.type == "worker.restarted_in_place"]
    assert len(restarts) == RANK_KILLS
    (line,) = [line for line in client.logs(job.id).text.splitlines() if line.startswith("last step")]
    steps = range(1, int(line.split()[-1]) + 1)
    curves = {series.key: series for series in client.metrics(job.id, max_points=100_000).series}
    assert curves.keys() == {"mlflow", "wandb", "tensorboard"}
    for name, curve in curves.items():
        assert list(curve.steps) == list(steps), name
        assert list(curve.values) == [stored(name, step + 1 / step) for step in steps], name


def stored(tracker: str, value: float) -> float:
    """Return what the tracker's client sends of a value: event files of TensorBoard hold single precision."""
    return float(np.float32(value)) if tracker == "tensorboard" else value
