"""Bad input through the real clients of trackers: each has a clear answer, and the program goes on to its end."""

import math
import re
from pathlib import Path

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, store_code
from worker.trackers.journal import MAX_NAMES

ARTIFACT = 50 * 1024**2
"""Bytes."""
MAX_GROWTH = 24 * 1024**2
"""Bytes by which the launcher may grow while it receives everything, the names included."""
PREAMBLE = """
import math, os, pathlib, re
import psutil


def peak():
    launcher = psutil.Process().parent().parent()
    status = pathlib.Path(f"/proc/{launcher.pid}/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) * 1024


def refused(call):
    try:
        call()
    except Exception as error:
        print("refused:", " ".join(str(error).split()), flush=True)


pathlib.Path("artifact").write_bytes(os.urandom(50 * 1024**2))
odd = [math.inf, -math.inf, math.nan, 1e308]
before = peak()
"""
PROGRAMS = {
    "mlflow": """
import mlflow

mlflow.start_run()
for step, value in enumerate(odd):
    mlflow.log_metric("odd", value, step=step)
mlflow.log_params({"infinite": math.inf, "long": "x" * 5000})
mlflow.log_metrics({f"m{number}": 1.0 for number in range(10_000)}, step=1)
mlflow.log_artifact("artifact")
refused(lambda: mlflow.MlflowClient().search_registered_models())
mlflow.log_metric("odd", 2.0, step=20)
""",
    "wandb": """
import wandb

refused(lambda: wandb.login(key="f" * 40, relogin=True))
run = wandb.init(config={"infinite": math.inf, "long": "x" * 5000})
for step, value in enumerate(odd):
    run.log({"odd": value}, step=step)
run.log({f"m{number}": 1.0 for number in range(10_000)}, step=10)
artifact = wandb.Artifact("weights", "model")
artifact.add_file("artifact")
run.log_artifact(artifact)
refused(lambda: run.link_artifact(artifact, "registry/weights"))
run.log({"odd": 2.0}, step=20)
run.finish()
""",
}
EPILOGUE = """
print("grown by", peak() - before, flush=True)
"""
REFUSED = {"mlflow": {"mlflow_route"}, "wandb": {"wandb_LinkArtifact", "tracker_key"}}
"""The kinds of the events that state what is refused: a call that only a newer client makes, and another key."""


# W&B's client needs about ten seconds for 10,000 names.
@pytest.mark.heavy
@pytest.mark.parametrize("tracker", ["mlflow", pytest.param("wandb", marks=pytest.mark.slow)])
def test_program_goes_on_after_bad_input(tmp_path: Path, tracker: str) -> None:
    document = {
        "task": "script",
        "argv": ["train.py"],
        "code": store_code(tmp_path, PREAMBLE + PROGRAMS[tracker] + EPILOGUE),
        "gpus": 1,
        # Of these the client prefers the name and the password, which the listener has not made.
        "environment": {"variables": {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "of another"}},
    }
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=0)
        attempt = run.run(environ={"HOME": str(tmp_path)})
    log = attempt.rank_log(0).read_text()
    assert finish_of(attempt, 1).reason == "completed", log[-3000:]
    assert re.search(r"^refused: .*not supported by Trainyard", log, re.MULTILINE)
    grown = re.search(r"^grown by (\d+)", log, re.MULTILINE)
    assert grown is not None
    assert int(grown[1]) < MAX_GROWTH

    stored = [float(value) for _, value in sorted(service.series("odd").items())]
    assert stored[:2] == [math.inf, -math.inf]
    assert math.isnan(stored[2])
    assert stored[3:] == [1e308, 2.0]
    assert len({key for key, _, _ in service.points}) == MAX_NAMES
    assert len(service.parameters["long"]) == 2000
    kinds = {event["data"]["kind"] for event in service.events_of_type("report_adjusted")}
    assert kinds == {"too_many_names"} | REFUSED[tracker]
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "job" / "artifacts").rglob("*artifact*")}
    assert sizes.get("artifact") == ARTIFACT
