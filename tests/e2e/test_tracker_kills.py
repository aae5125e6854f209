"""Reports through three trackers are complete although the service and the rank are killed again and again."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.live import wait_for_status
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEPS = 400
SERVICE_KILLS = 20
PROGRAM = """
import os, pathlib, signal, time
import mlflow, wandb
from torch.utils.tensorboard import SummaryWriter

folder = pathlib.Path(os.environ["TRAINYARD_CHECKPOINT_DIR"])
mark = folder / "step"
start = int(mark.read_text()) if mark.exists() else 0
run = wandb.init()
writer = SummaryWriter("runs")
mlflow.start_run()
for step in range(start + 1, 401):
    value = step + 1 / step
    mlflow.log_metric("mlflow", value, step=step)
    run.log({"wandb": value}, step=step)
    writer.add_scalar("tensorboard", value, step)
    if step % 40 == 0:
        # A checkpoint after which nothing is repeated: wandb sends a step with the next one, within a second.
        (folder / "new").write_text(str(step))
        (folder / "new").rename(mark)
    killed = folder / f"killed-{step}"
    if step % 80 == 65 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
run.finish()
"""


@pytest.mark.timeout(900)
def test_no_point_is_lost_or_doubled_by_kills(service: ServiceProcess, client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    spec = {"name": "killed", "task": "script", "argv": ["train.py"], "restart": {"max_retries": 8}}
    job = client.submit(spec, code=tmp_path)

    def step() -> int:
        return max((series.steps[-1] for series in client.metrics(job.id).series), default=0)

    def has_moved(before: int) -> bool:
        return step() > before or client.job(job.id).status == "succeeded"

    kills = 0
    while kills < SERVICE_KILLS and client.job(job.id).status != "succeeded":
        moved = partial(has_moved, step())
        service.kill()
        service.start()
        service.client().close()
        kills += 1
        wait_until(moved, 60, "a new point")
    wait_for_status(client, job.id, "succeeded")
    assert kills == SERVICE_KILLS
    curves = {series.key: series for series in client.metrics(job.id).series}
    assert curves.keys() == {"mlflow", "wandb", "tensorboard"}
    for name, curve in curves.items():
        assert list(curve.steps) == list(range(1, STEPS + 1)), name
        assert list(curve.values) == [step + 1 / step for step in range(1, STEPS + 1)], name
