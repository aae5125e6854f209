"""`make lab`: a two-node Slurm on this machine with a service on it, to play with until Ctrl-C."""

import os
import signal
import sys
import threading
from pathlib import Path

from tests.support.slurm_lab import SlurmMissingError, running_lab
from trainyard.demo import DemoError, ServiceProcess

_USAGE = """
A Slurm of two nodes with two GPUs each (that do not exist), and a Trainyard service on it: {url}
In another shell:

  export SLURM_CONF={conf}
  export TRAINYARD_URL={url} TRAINYARD_TOKEN={token}
  .venv/bin/trainyard submit mlp_parity --set resources.partition=gpu --set resources.gpus_per_node=1 --watch
  sinfo; squeue --states=all
  scontrol update nodename=node2 state=down reason=play; scontrol update nodename=node2 state=resume
  sbatch -p high -N2 --exclusive --output=/dev/null --wrap 'sleep 30'      preempts what runs in `gpu`

Runs are in {runs}. Ctrl-C ends all of it.
"""


def main() -> int:
    """Until a signal; the exit status."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    try:
        with running_lab() as lab:
            os.environ.update(lab.environment)
            service = ServiceProcess(lab.root, backend="slurm", accelerator="cpu")
            try:
                service.start()
                with service.client():
                    token = Path(service.state_dir / "admin_token").read_text().strip()
                print(_USAGE.format(url=service.url, conf=lab.conf, token=token, runs=service.runs_dir), flush=True)
                over.wait()
            finally:
                service.stop()
        return 0
    except (SlurmMissingError, DemoError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
