"""`make lab`: a two-node Slurm on this machine with a service, for manual experiments; Ctrl-C stops it."""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from tests.support.slurm_lab import SlurmMissingError, Variant, running_lab
from trainyard.demo import DemoError, ServiceProcess

_USAGE = """
A Slurm of two nodes with two GPUs each (that do not exist), and a Trainyard service on it: {url}
In another shell:

  export SLURM_CONF={conf}
  export TRAINYARD_URL={url} TRAINYARD_TOKEN={token}
  .venv/bin/trainyard submit mlp_parity --set resources.partition=gpu --set resources.gpus_per_node=1{more} --watch
  sinfo; squeue --states=all
  scontrol update nodename=node2 state=drain reason=play; scontrol update nodename=node2 state=resume
  sbatch -p high -N2 --exclusive --output=/dev/null --wrap 'sleep 30'      preempts what runs in `gpu`

Runs are in {runs}. Ctrl-C ends all of it.
"""
_CPU_OPTIONS = " --set backend=gloo --set precision=fp32"
"""The GPUs of the cluster are empty files, so jobs that request them compute on the CPU."""


def main() -> int:
    """Run the cluster and the service until a signal; return the exit status."""
    parser = argparse.ArgumentParser(description="A Slurm cluster for experiments.")
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd, which enforces accounts and QOS")
    parser.add_argument("--gpus", action="store_true", help="jobs request GPUs, which are simulated")
    arguments = parser.parse_args()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        with running_lab(Variant(accounting=arguments.accounting)) as lab:
            os.environ.update(lab.environment)
            service = ServiceProcess(lab.root, backend="slurm", accelerator="auto" if arguments.gpus else "cpu")
            try:
                service.start()
                with service.client():
                    token = Path(service.state_dir / "admin_token").read_text().strip()
                values = {"url": service.url, "conf": lab.conf, "token": token, "runs": service.runs_dir}
                print(_USAGE.format(**values, more=_CPU_OPTIONS if arguments.gpus else ""), flush=True)
                stopped.wait()
                print("stopping: the jobs that run are ended, then the daemons; this may take a minute", flush=True)
            finally:
                service.stop()
        return 0
    except (SlurmMissingError, DemoError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
