"""A real Slurm on this machine for tests: two nodes with simulated GPUs. Everything is removed at the end."""

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.packages import install
from tests.support.slurm_accounting import Accounting
from tests.support.slurm_reaper import DAEMON_VARIABLE, cluster_processes, kill
from tests.support.wait import wait_until

PROGRAMS = ("munged", "bindfs", "slurmctld", "slurmd", "sbatch", "squeue", "slurmdbd", "mariadbd", "mariadb-install-db")
PACKAGES = ("bindfs", "slurmctld", "slurmd", "slurm-client", "munge", "slurmdbd", "mariadb-server")
INSTALL_HINT = f"Slurm's programs are missing; install the packages {' '.join(PACKAGES)} (root can: the tests do it)"
_SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_PR_SET_PDEATHSIG = 1


class SlurmMissingError(Exception):
    """There is no Slurm on this machine and it cannot be installed."""


@dataclass(frozen=True)
class Variant:
    """The options of a cluster."""

    preempt_mode: str = "CANCEL"
    grace_seconds: int = 20
    min_job_age: int = 300
    """Seconds after which the controller purges an ended job."""
    kill_wait: int = 30
    stamps: bool = False
    """Whether to record when each job starts on its first node; see `SlurmLab.started`."""
    accounting: bool = False
    """Whether to run slurmdbd and a MariaDB, which sacct queries."""
    own_mounts: bool = False
    """Whether each node reaches `SlurmLab.shared` through a mount of its own, which a test can stop."""


class SlurmLab:
    """A running cluster: `node1` and `node2`, partitions `gpu` (preemptible), `high` and `minute`."""

    def __init__(self, root: Path, variant: Variant) -> None:
        self.root = root
        self.conf = root / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": _SEARCH}
        self._variant = variant
        self._ports = _free_ports(5)
        self._accounting = Accounting(self, self._ports[3], self._ports[4]) if variant.accounting else None
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start the cluster; return when both nodes are idle."""
        self._write_configuration()
        self.start_munge()
        if self._accounting:
            self._accounting.start()
        self.start_controller()
        for node in ("node1", "node2"):
            self.start_node(node)
        wait_until(self._nodes_are_idle, 60, f"both nodes to be idle; the logs are in {self.root}")

    def start_controller(self, *, clean: bool = False) -> None:
        """Start the controller.

        Args:
            clean: Whether it forgets the jobs and nodes of its saved state.
        """
        self.spawn("slurmctld", ["slurmctld", "-D", *(["-c"] if clean else [])])

    def stop_controller(self) -> None:
        """Stop the controller, as in an outage; a later start restores its saved state."""
        self._stop_daemon("slurmctld")

    @property
    def shared(self) -> Path:
        """The folder that all nodes share, where `Variant.own_mounts` is set."""
        return self.root / "shared"

    def start_node(self, node: str, *, without: Path | None = None) -> None:
        """Start the daemon of a node.

        Args:
            without: A folder that the node does not see, as if its filesystem were not mounted there.
        """
        daemon = ["slurmd", "-D", "-N", node]
        if without is not None:
            script = f'mount -t tmpfs none {without} && exec "$0" "$@"'
            daemon = ["unshare", "--mount", "--propagation", "private", "bash", "-ec", script, *daemon]
        if self._variant.own_mounts:
            script = _MOUNT_AND_RUN.format(shared=self.shared, pid=self.root / f"mount-{node}.pid")
            daemon = ["unshare", "--mount", "--propagation", "private", "bash", "-ec", script, *daemon]
        self.spawn(node, daemon)

    def stop_mount(self, node: str) -> int:
        """Let each access of a node to the shared folder wait, as NFS does without its server; return the mount's pid.

        SIGCONT to the process ends the outage.
        """
        pid = int((self.root / f"mount-{node}.pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        return pid

    def stop_node(self, node: str) -> None:
        """Kill a node's daemon and all its processes, as a power failure would."""
        daemon = self._daemons.pop(node)
        descendants = cluster_processes(self.conf, node)
        daemon.kill()
        daemon.wait()
        kill(descendants)

    def disconnect_node(self, node: str) -> None:
        """Kill a node's daemon alone: the controller loses the node, whose jobs run on."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()

    def start_accounting(self) -> None:
        """Start the accounting again after an outage."""
        self.spawn("slurmdbd", ["slurmdbd", "-D"])

    def stop_accounting(self) -> None:
        self._stop_daemon("slurmdbd")

    def run(self, *command: str) -> str:
        """Run a Slurm command and return its output.

        Raises:
            RuntimeError: the command failed; with its output.
        """
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def started(self, number: str) -> float:
        """Return the time at which Slurm started a job on its first node, before the batch script."""
        return float((self.root / f"started-{number}").read_text().split()[0])

    def jobs(self, *, states: str = "all") -> list[tuple[str, str, str]]:
        """Return id, name and state of each job that the controller lists."""
        lines = self.run("squeue", f"--states={states}", "--noheader", "-o", "%i|%T|%j").splitlines()
        return [(number, name, state) for number, state, name in (line.split("|", 2) for line in lines)]

    def cancel_all(self) -> None:
        """Cancel all jobs and wait until their processes have ended."""
        for number, _, _ in self.jobs(states="PENDING,RUNNING,SUSPENDED"):
            # A job that ends in the meantime cannot be cancelled.
            with suppress(RuntimeError):
                self.run("scancel", "--signal=KILL", "--full", number)
                self.run("scancel", number)
        wait_until(lambda: not self.jobs(states="PENDING,RUNNING,COMPLETING,SUSPENDED"), 60, "all jobs to be gone")

    def stop(self) -> None:
        """Stop all daemons and their processes."""
        with suppress(AssertionError, RuntimeError, subprocess.TimeoutExpired):
            self.cancel_all()
        for name in reversed(list(self._daemons)):
            self._stop_daemon(name)
        kill(cluster_processes(self.conf))

    def start_munge(self) -> None:
        folder = self.root / "munge"
        if not folder.exists():
            folder.mkdir(mode=0o755)
            (folder / "key").write_bytes(secrets.token_bytes(128))
            (folder / "key").chmod(0o400)
        files = [f"--{part}-file={folder / part}" for part in ("key", "log", "pid", "seed")]
        self.spawn("munged", ["munged", "--foreground", *files, f"--socket={folder / 'socket'}", "--num-threads=2"])
        wait_until((folder / "socket").exists, 20, f"munged; its log is {folder / 'log'}")

    def stop_munge(self) -> None:
        self._stop_daemon("munged")

    def _nodes_are_idle(self) -> bool:
        for name, daemon in self._daemons.items():
            if daemon.poll() is not None:
                log = (self.root / f"{name}.log").read_text(errors="replace")
                raise RuntimeError(f"{name} ended with {daemon.returncode}:\n{log[-2000:]}")
        with suppress(RuntimeError):
            return self.run("sinfo", "--noheader", "--Node", "-p", "gpu", "-o", "%T").split() == ["idle", "idle"]
        return False

    def spawn(self, name: str, command: list[str]) -> None:
        """Start a daemon, which ends with the lab."""
        libc, parent = ctypes.CDLL(None), os.getpid()

        def before_exec() -> None:
            # If the tests are killed, the lab must end, too.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        program = shutil.which(command[0], path=_SEARCH)
        assert program is not None, f"{command[0]} was there a moment ago"
        with (self.root / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [program, *command[1:]],
                env=self.environment | {DAEMON_VARIABLE: name},
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=before_exec,
            )

    def _stop_daemon(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(15)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _write_configuration(self) -> None:
        root, variant, host = self.root, self._variant, socket.gethostname()
        for folder in ("state", "spool", "gpus", "shared"):
            (root / folder).mkdir()
        for gpu in range(2):
            (root / "gpus" / f"gpu{gpu}").touch()
        lines = [f"NodeName=node{n} Name=gpu File={root}/gpus/gpu[0-1]" for n in (1, 2)]
        (root / "gres.conf").write_text("\n".join(lines) + "\n")
        user = psutil.Process().username()
        text = _CONFIGURATION.format(
            root=root,
            host=host,
            user=user,
            controller=self._ports[0],
            first=self._ports[1],
            second=self._ports[2],
            accounting=self._accounting.configuration() if self._accounting else _NO_ACCOUNTING,
            preempt_mode=variant.preempt_mode,
            grace_seconds=variant.grace_seconds,
            min_job_age=variant.min_job_age,
            kill_wait=variant.kill_wait,
        )
        if variant.stamps:
            prolog = root / "prolog"
            prolog.write_text(f"#!/bin/sh\ndate +%s.%N >> {root}/started-$SLURM_JOB_ID\n")
            prolog.chmod(0o755)
            text += f"Prolog={prolog}\nPrologFlags=Alloc\n"
        self.conf.write_text(text)
        if self.release >= (23, 2):
            # Its nodes would not start where no filesystem of cgroups is mounted.
            (root / "cgroup.conf").write_text("CgroupPlugin=disabled\n")

    @property
    def release(self) -> tuple[int, int]:
        """The release of Slurm, such as (22, 5)."""
        first, second = self.run("sinfo", "--version").split()[-1].split(".")[:2]
        return int(first), int(second)


_MOUNT_AND_RUN = """
SLURMD_NODENAME= bindfs -f {shared} {shared} &
echo $! > {pid}
until mountpoint -q {shared}; do kill -0 $!; sleep 0.05; done
exec "$0" "$@"
"""
_NO_ACCOUNTING = "AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none"
_CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,bf_interval=2,sched_interval=2
JobRequeue=1
GresTypes=gpu
Licenses=tokens:4
{accounting}
MpiDefault=none
SlurmdParameters=config_overrides
SlurmdTimeout=10
MinJobAge={min_job_age}
KillWait={kill_wait}
PreemptType=preempt/partition_prio
PreemptMode={preempt_mode}
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=8 RealMemory=12000 Gres=gpu:2
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=8 RealMemory=12000 Gres=gpu:2
PartitionName=gpu Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace_seconds}
PartitionName=high Nodes=node[1-2] MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=minute Nodes=node[1-2] MaxTime=1 DefaultTime=1 State=UP PriorityTier=1
"""


@contextmanager
def running_lab(variant: Variant | None = None) -> Iterator[SlurmLab]:
    """Start a cluster and yield it; stop and remove it in any case.

    Raises:
        SlurmMissingError: the message explains how to install it.
    """
    _require_programs()
    root = Path(tempfile.mkdtemp(prefix="trainyard-slurm-"))
    root.chmod(0o755)
    lab = SlurmLab(root, variant or Variant())
    reaper = subprocess.Popen(
        [sys.executable, "-m", "tests.support.slurm_reaper", str(lab.conf)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()
        shutil.rmtree(root, ignore_errors=True)
        reaper.communicate()


def _require_programs() -> None:
    if not _missing():
        return
    install("Slurm", *PACKAGES)
    if missing := _missing():
        raise SlurmMissingError(f"{INSTALL_HINT}; not found: {', '.join(missing)}")


def _missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=_SEARCH) is None]


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
