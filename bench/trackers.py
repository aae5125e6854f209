"""`python -m bench.trackers`: how long a program's call of its tracker takes when the listener receives the points.

The real clients of MLflow and W&B log a metric every 2 ms, in turn

* offline: the client's own mode without a server (MLflow: files, W&B: `WANDB_MODE=offline`);
* floor: the same server as that of a job, which stores nothing, so that the difference is the cost of the spool;
* listener: the launcher's listener, whose spool nobody sends.

MLflow's client sends a request within the call, W&B's in another process. The program prints medians of the rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from trainyard.contract.layout import AttemptLayout, RunLayout
from worker.trackers.artifacts import ArtifactFolder
from worker.trackers.journal import Journal, TrackedValue
from worker.trackers.listener import TrackerListener
from worker.trackers.mlflow import MlflowApi
from worker.trackers.variables import LISTENER_SECRET, LISTENER_URL, tracker_variables
from worker.trackers.wandb import WandbApi

MAX_SPOOL_SECONDS = 100e-6
"""The 99th percentile of a call may be this much above the floor's."""
MAX_OFFLINE_SECONDS = 100e-6
"""The same, above W&B's offline mode."""
_LOOP = """
import json, sys, time
{setup}
seconds = []
for step in range({calls} + 50):
    start = time.perf_counter()
    {log}
    seconds.append(time.perf_counter() - start)
    time.sleep(0.002)
{end}
seconds = sorted(seconds[50:])
print(json.dumps([seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]]))
"""
_CLIENTS = {
    "mlflow": ("import mlflow; mlflow.start_run()", "mlflow.log_metric('loss', 1 / (step + 1), step=step)", ""),
    "wandb": ("import wandb; run = wandb.init()", "run.log({'loss': 1 / (step + 1)})", "run.finish()"),
}
_MODES = ("offline", "floor", "listener")


class _NoJournal(Journal):
    """Takes everything and stores nothing."""

    def log(self, execution: int, tracker: str, values: Iterable[TrackedValue]) -> int:
        return len(list(values))


def main() -> int:
    """Print the table; return 0 if the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1000)
    arguments = parser.parse_args()
    times: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for _ in range(arguments.rounds):
        for client in _CLIENTS:
            for mode in _MODES:
                times[client, mode].append(_measure(client, mode, arguments.calls))
    print(f"us of a call, median of {arguments.rounds} rounds of {arguments.calls} calls")
    p99 = {key: median(round_[1] for round_ in rounds) for key, rounds in times.items()}
    for (client, mode), rounds in times.items():
        p50 = median(one[0] for one in rounds)
        print(f"  {client:7} {mode:9} p50 {p50 * 1e6:5.0f}  p99 {p99[client, mode] * 1e6:5.0f}")
    spool = {client: p99[client, "listener"] - p99[client, "floor"] for client in _CLIENTS}
    offline = {client: p99[client, "listener"] - p99[client, "offline"] for client in _CLIENTS}
    for client in _CLIENTS:
        print(
            f"  {client:7} p99 above floor {spool[client] * 1e6:.0f} us, above offline {offline[client] * 1e6:.0f} us"
        )
    met = max(spool.values()) < MAX_SPOOL_SECONDS and offline["wandb"] < MAX_OFFLINE_SECONDS
    return 0 if met else 1


def _measure(client: str, mode: str, calls: int) -> list[float]:
    """Return median and 99th percentile of a call in seconds."""
    setup, log, end = _CLIENTS[client]
    program = _LOOP.format(setup=setup, log=log, end=end, calls=calls)
    inherited = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    with tempfile.TemporaryDirectory() as folder, _variables(mode, Path(folder)) as variables:
        environment = inherited | variables | {"WANDB_SILENT": "true", "HOME": folder}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return [float(seconds) for seconds in json.loads(lines[0])]


@contextmanager
def _variables(mode: str, folder: Path) -> Iterator[dict[str, str]]:
    if mode == "offline":
        uri = (folder / "runs").as_uri()
        yield {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}
        return
    command = [sys.executable, "-m", "bench.trackers", "--serve", mode, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            url, secret = process.stdout.readline().decode().split()
            yield tracker_variables({LISTENER_URL: url, LISTENER_SECRET: secret}, 1)
        finally:
            process.kill()


def _serve(mode: str, folder: Path) -> None:
    layout: AttemptLayout = RunLayout(folder).attempt("1-a")
    layout.root.mkdir(parents=True)
    journal = (_NoJournal if mode == "floor" else Journal)(layout, 0)
    artifacts = ArtifactFolder(folder / "artifacts")
    mlflow = MlflowApi(journal, artifacts)
    wandb = WandbApi(journal, artifacts, lambda: (listener.url, listener.secret))
    listener = TrackerListener(
        lambda request: (wandb if wandb.serves(request.path) else mlflow).handle(request), lambda: 1
    )
    print(listener.url, listener.secret, flush=True)
    listener.start()
    threading.Event().wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _serve(sys.argv[2], Path(sys.argv[3]))
    sys.exit(main())
