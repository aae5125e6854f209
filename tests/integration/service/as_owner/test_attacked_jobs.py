"""What other accounts and hosts can do to running jobs of owners, in containers and outside: nothing."""

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.container_images import make_root_of_this_machine, require_runtime
from tests.support.live import processes_of, wait_for_status, wait_for_step
from tests.support.network_namespace import OtherHost, attack_everywhere, is_loopback, other_host
from tests.support.owners import OwnerService, UnixUser, open_folder
from trainyard.contract.layout import RunLayout

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account and as another host"),
]

SECRET = "hush-hush-4712"
STEPS = 300
CODE = {
    "task.py": """
import os, pathlib, time, torch
from trainyard.custom import CustomTask, Examples

class Task(CustomTask):
    def __init__(self, spec):
        self.examples = Examples((torch.randn(64, 2),), train=64, held_out=0)

    def build_model(self):
        return torch.nn.Linear(2, 1)

    def loss_sum(self, model, batch):
        if not pathlib.Path(os.environ["APP_ATTACKED"]).exists():
            time.sleep(1)
        return model(*batch).square().sum()
""",
    "program.py": f"""
import os, pathlib, time
import torch.distributed as dist
from trainyard.script import report

dist.init_process_group("gloo")
for step in range(1, {STEPS + 1}):
    report(step, {{"loss": 1.0 / step}}, total_steps={STEPS})
    if not pathlib.Path(os.environ["APP_ATTACKED"]).exists():
        time.sleep(1)
dist.barrier()
""",
}


@pytest.fixture(scope="module")
def host() -> Iterator[OtherHost]:
    with other_host() as made:
        yield made


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Yield a folder that all can enter, with code, and the root filesystem of a container."""
    require_runtime("charliecloud")
    with open_folder() as made:
        (made / "code").mkdir(mode=0o755)
        for name, text in CODE.items():
            (made / "code" / name).write_text(text)
        yield made


@pytest.fixture(scope="module")
def service(folder: Path, people: list[UnixUser], python: Path) -> Iterator[OwnerService]:
    mounted = make_root_of_this_machine(folder / "image")
    roots = ",".join(map(str, (folder, *mounted)))
    made = OwnerService(folder, python, allowed_roots=roots, container_runtime="charliecloud")
    made.start()
    yield made
    made.stop()


def spec(task: str, image: Path | None, attacked: Path) -> dict[str, Any]:
    """Return the spec of a job of two ranks that takes its time until a file exists."""
    environment: dict[str, Any] = {"secrets": ["HF_TOKEN"], "variables": {"APP_ATTACKED": str(attacked)}}
    environment |= {"container": {"image": str(image)}} if image else {}
    common = {"task": task, "gpus": 2, "environment": environment, "restart": {"max_retries": 0}}
    if task == "script":
        return common | {"argv": ["program.py"]}
    training = {"batch": {"size": 8}, "optimizer": {"name": "sgd", "lr": 0.1}}
    return common | training | {"target": "task:Task", "strategy": "ddp", "precision": "fp32", "steps": STEPS}


def matches_in(paths: Iterable[Path], texts: Iterable[str], user: UnixUser | None = None) -> set[str]:
    """Return the files in which an account finds one of the texts; None: root."""
    command = ["grep", "-lsaF", *(f"-e{text}" for text in texts), "--", *map(str, paths)]
    return set(act_as(user, *command).stdout.split())


def act_as(user: UnixUser | None, *command: str) -> "subprocess.CompletedProcess[str]":
    account: dict[str, Any] = {"user": user.uid, "group": user.gid, "extra_groups": []} if user else {}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **account)


def files_of(owner: UnixUser, *folders: Path) -> list[Path]:
    """Return what an account, which has nothing but its job, has below folders."""
    command = ["find", *map(str, folders), "-xdev", "-user", owner.name, "-type", "f"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [Path(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("task", "contained"),
    [("script", True), *(pytest.param("custom", contained, marks=pytest.mark.slow) for contained in (True, False))],
)
def test_attacked_job_of_an_owner_ends_as_an_undisturbed_one(
    service: OwnerService, people: list[UnixUser], folder: Path, host: OtherHost, task: str, contained: bool
) -> None:
    owner, other = people[:2]
    name = f"attack-{os.getpid()}-{task}-{contained}"
    attacked, marker = folder / name, Path("/tmp", name)
    with service.client() as admin, service.user_client(admin, owner) as client:
        client.set_secret("HF_TOKEN", SECRET)
        job = client.submit(spec(task, folder / "image" if contained else None, attacked), code=folder / "code")
        wait_for_step(client, job.id, 2)
        (attempt,) = client.attempts(job.id)
        processes = {each for one in processes_of(attempt.id) for each in (one, *one.children(recursive=True))}
        assert {each.uids().real for each in processes} == {owner.uid}
        endpoints, stores = attack_everywhere([each.pid for each in processes], host, marker)
        assert not marker.exists()
        # Libraries make and trust folders with known names there. What starts containers has no such library.
        ranks = [each.environ() for each in processes if "rank_process" not in " ".join(each.cmdline())]
        temporary = {one.get("TMPDIR", "/tmp") for one in ranks if "RANK" in one}
        assert temporary
        assert [each for each in temporary if act_as(other, "ls", each).returncode == 0] == []
        check_secrets(RunLayout(service.runs_dir / job.id), [each.pid for each in processes], owner, other)
        assert client.job(job.id).resource.status == "running", "the attack took longer than the job"
        attacked.touch()
        done = wait_for_status(client, job.id, "succeeded", "failed")
        assert done.status == "succeeded", (done.status_message, service.log_tail())
        assert done.progress is not None
        assert (done.progress.step, len(list(client.attempts(job.id)))) == (STEPS, 1)
    assert not marker.exists()
    assert endpoints
    # A program in a Python of its own makes torch's store itself.
    assert bool(stores) == (task == "script")
    assert all(is_loopback(address) for address, _ in endpoints) == (task == "custom")


def check_secrets(run: RunLayout, pids: Iterable[int], owner: UnixUser, other: UnixUser) -> None:
    """Check that nobody but the ranks has the secret, and nobody but the launcher the token."""
    (token,) = run.root.glob("attempts/*/token")
    texts = [SECRET, token.read_text().strip()]
    processes = [Path("/proc", str(pid), name) for pid in pids for name in ("cmdline", "environ")]
    files = files_of(owner, run.root, Path("/tmp"), Path("/dev/shm"))
    assert "spool" in {path.parent.name for path in files}
    assert matches_in([*processes, *files], texts, other) == set()
    expected = {str(token), *(str(path) for path in processes if path.name == "environ")}
    matches = matches_in([*processes, *files], texts)
    assert matches <= expected
    assert len(matches - {str(token)}) >= 2, "the ranks have the secret"
