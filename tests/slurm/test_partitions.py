"""A node that loses Slurm's controller, the service or the shared folder, or two of them, at any time of a run.

Afterwards the job has the points of one undisturbed run, each once and with all digits.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from time import monotonic

import pytest

from tests.slurm.conftest import cluster, slurm_service_behind_proxy
from tests.support.live import losses, run_of, wait_for_status
from tests.support.paced import SLOWLY, Pace, paced_run
from tests.support.slurm_lab import SlurmLab, Variant
from tests.support.tcp_proxy import TcpProxy
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.layout import AttemptLayout, CheckpointLayout, RunLayout
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

STEPS = 60
LINKS = ("controller", "service", "folder")
OUTAGES = [*((link,) for link in LINKS), *combinations(LINKS, 2)]
TIMES = ("starting", "training", "saving", "ending")
QUICK = [(("controller", "folder"), "saving")]
"""The case that runs with the other tests on a Slurm."""
CASES = [
    pytest.param(
        links, time, id=f"{'-and-'.join(links)}-{time}", marks=[] if (links, time) in QUICK else pytest.mark.slow
    )
    for links in OUTAGES
    for time in TIMES
]


@pytest.fixture(scope="module")
def mounted_lab() -> Iterator[SlurmLab]:
    yield from cluster(Variant(own_mounts=True))


@dataclass
class Rig:
    """A service on a cluster, whose connections can be cut."""

    lab: SlurmLab
    service: ServiceProcess
    proxy: TcpProxy
    client: Client
    pace: Pace
    _restore: ExitStack = field(default_factory=ExitStack)

    def spec(self) -> dict[str, object]:
        return paced_run(resources={"partition": "gpu"}, steps=STEPS, restart={"max_retries": 0})

    def cut(self, links: tuple[str, ...], node: str) -> None:
        """Cut the node's links, which `restore` repairs."""
        for link in links:
            if link == "controller":
                self.lab.disconnect_node(node)
                self._restore.callback(self.lab.start_node, node)
            elif link == "service":
                self.proxy.cut()
                self._restore.callback(self.proxy.restore)
            else:
                self._restore.callback(os.kill, self.lab.stop_mount(node), signal.SIGCONT)

    def restore(self) -> None:
        self._restore.close()


@pytest.fixture(scope="module")
def reference(mounted_lab: SlurmLab, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Return the losses of an undisturbed run."""
    folder = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as environment, ExitStack() as stack:
        rig = _rig(mounted_lab, folder, environment, stack)
        job = rig.client.submit(rig.spec(), code=rig.pace.code)
        assert wait_for_status(rig.client, job.id, "succeeded", "failed").status == "succeeded"
        return losses(rig.client, job.id)


@pytest.fixture
def rig(
    mounted_lab: SlurmLab, reference: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rig]:
    with ExitStack() as stack:
        rig = _rig(mounted_lab, tmp_path, monkeypatch, stack)
        try:
            yield rig
        finally:
            rig.restore()
            rig.pace.set(0)
            mounted_lab.cancel_all()
            for node in ("node1", "node2"):
                # A node whose processes could not be killed during the outage is drained.
                with suppress(RuntimeError):
                    mounted_lab.run("scontrol", "update", f"nodename={node}", "state=resume")


def _rig(lab: SlurmLab, folder: Path, environment: pytest.MonkeyPatch, stack: ExitStack) -> Rig:
    environment.setenv("SLURM_CONF", str(lab.conf))
    service, proxy = stack.enter_context(slurm_service_behind_proxy(lab.shared / folder.name))
    return Rig(lab, service, proxy, stack.enter_context(service.client()), Pace(folder))


@pytest.mark.parametrize(("links", "time"), CASES)
@pytest.mark.fault_scenario(46)
def test_outage_changes_no_point_of_the_run(
    rig: Rig, reference: dict[int, str], links: tuple[str, ...], time: str
) -> None:
    rig.pace.set(SLOWLY)
    job = rig.client.submit(rig.spec(), code=rig.pace.code)
    run = run_of(rig.service.runs_dir, job.id)
    _wait_for_time(rig, run, job.id, time)
    (first,) = rig.client.attempts(job.id)
    rig.cut(links, first.nodes[0].split()[0])
    if "controller" in links:
        wait_until(lambda: len(list(rig.client.attempts(job.id))) == 2 or _ended(rig, job.id), 200, "a next attempt")
        wait_until(lambda: _second_trains(rig, run, job.id), 200, "the next attempt to train")
    rig.restore()
    rig.pace.set(0)
    done = wait_for_status(rig.client, job.id, "succeeded", "failed", seconds=240)
    assert done.status == "succeeded", done.status_message
    assert losses(rig.client, job.id) == reference


def _wait_for_time(rig: Rig, run: RunLayout, job_id: str, time: str) -> None:
    reached: dict[str, Callable[[], object]] = {
        "starting": lambda: [attempt.nodes for attempt in rig.client.attempts(job_id) if attempt.nodes],
        "training": lambda: _step(rig, job_id) >= 13,
        "saving": lambda: _is_saving(run),
        "ending": lambda: _step(rig, job_id) >= STEPS - 2,
    }
    wait_until(reached[time], 120, f"the time of the outage: {time}")
    if time == "ending":
        rig.pace.set(0)


def _is_saving(run: RunLayout) -> bool:
    """Watch for a second whether a checkpoint has no manifest yet, which takes some milliseconds."""
    limit = monotonic() + 1
    while monotonic() < limit:
        if any(not CheckpointLayout(folder).manifest.exists() for folder in run.checkpoints.glob("step-*")):
            return True
    return False


def _step(rig: Rig, job_id: str) -> int:
    progress = rig.client.job(job_id).progress
    return progress.step if progress else 0


def _ended(rig: Rig, job_id: str) -> bool:
    return rig.client.job(job_id).status in ("succeeded", "failed")


def _second_trains(rig: Rig, run: RunLayout, job_id: str) -> bool:
    """Return whether the next attempt has written points, or the job has ended."""
    if _ended(rig, job_id):
        return True
    folders = [AttemptLayout(folder) for folder in run.attempts.glob("2-*")]
    return any(spool.stat().st_size for folder in folders for spool in folder.spool.glob("*"))
