"""What other accounts of a node, and other hosts, can do to a running job: no code runs, and it ends as usual."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.integration.worker.harness import (
    FakeService,
    Run,
    finish_of,
    processes_of,
    run_layout,
    spooled,
    store_code,
    wait_for,
)
from tests.support.network_namespace import OtherHost, attack_everywhere, is_loopback, other_host
from tests.support.sockets import listening_sockets
from trainyard.contract.spec.training_spec import dump_spec

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account and as another host"),
]

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
SECRET = "hush-hush-4711"
PROGRAM = """
import pathlib, sys, time
import torch.distributed as dist
from trainyard.script import report

dist.init_process_group("gloo")
attacked = pathlib.Path(sys.argv[1])
for step in range(1, 301):
    report(step, {"loss": 1.0 / step}, total_steps=300)
    if not attacked.exists():
        time.sleep(1)
dist.barrier()
"""


@pytest.fixture(scope="module")
def host() -> Iterator[OtherHost]:
    with other_host() as made:
        yield made


@pytest.mark.parametrize(
    ("gpus", "nodes"), [(2, 2), *(pytest.param(gpus, 1, marks=pytest.mark.slow) for gpus in (1, 2))]
)
def test_attacked_training_ends_as_an_undisturbed_one(tmp_path: Path, host: OtherHost, gpus: int, nodes: int) -> None:
    marker = Path("/tmp", f"attack-{os.getpid()}-{gpus}-{nodes}")
    attacked = tmp_path / "attacked"
    with FakeService() as service:
        strategy = {"strategy": "single"} if gpus == 1 else {}
        run = Run(tmp_path / "job", service.url, {"gpus": gpus, "epochs": 8} | strategy, nodes=nodes)
        attempt = run.start(faults=[{"kind": "sleep", "seconds": 1, "until": str(attacked)}])
        wait_for(lambda: len(service.series("train/loss")) >= 2, "two steps")
        endpoints, stores = attack_everywhere(processes_of(attempt), host, marker)
        assert is_running(run), f"it has ended; attackers ran code in it: {marker.exists()}"
        attacked.touch()
        run.wait(120)
    assert not marker.exists()
    own = {endpoint for endpoint in endpoints if not is_loopback(endpoint[0])}
    assert len({address for address, _ in own}) == (nodes > 1), "only several nodes listen on an address of the network"
    low, high = map(int, EPHEMERAL.read_text().split())
    assert all(low <= port <= high for _, port in own), "docs/security.md names the ports to close"
    assert endpoints, "gloo has sockets"
    assert bool(stores) == (nodes > 1)
    assert not any("rendezvous" in key for store in stores for key in store["keys"])
    record = finish_of(attempt, 1)
    assert (record.reason, record.step, record.restarts) == ("completed", 96, 0)
    expected = run_layout(gpus, {"case": {"spec": dump_spec(run.spec), "single": False}}, tmp_path / "reference")
    losses = {int(step): value for step, value in expected[0]["case"]["series"]["train/loss"].items()}
    assert spooled(attempt, 1) == losses


def is_running(run: Run) -> bool:
    assert run.process is not None
    return run.process.poll() is None


def test_attacked_program_ends_as_an_undisturbed_one(tmp_path: Path, host: OtherHost) -> None:
    marker = Path("/tmp", f"attack-{os.getpid()}-program")
    attacked = tmp_path / "attacked"
    document = {"task": "script", "argv": ["train.py", str(attacked)], "code": store_code(tmp_path, PROGRAM), "gpus": 2}
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=0)
        attempt = run.start()
        wait_for(lambda: len(service.series("train/loss")) >= 2, "two steps")
        endpoints, _ = attack_everywhere(processes_of(attempt), host, marker)
        assert is_running(run), f"it has ended; attackers ran code in it: {marker.exists()}"
        attacked.touch()
        run.wait(120)
    assert not marker.exists()
    assert all(is_loopback(address) for address, _ in endpoints)
    record = finish_of(attempt, 1)
    assert (record.reason, record.step, record.restarts) == ("completed", 300, 0)
    assert list(spooled(attempt, 1)) == list(range(1, 301))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Path]]:
    """Yield a program of two ranks that is running, and its folder for temporary files."""
    folder = tmp_path_factory.mktemp("running")
    temporary, attacked = folder / "temporary", folder / "attacked"
    temporary.mkdir()
    document = {
        "task": "script",
        "argv": ["train.py", str(attacked)],
        "code": store_code(folder, PROGRAM),
        "gpus": 2,
        "environment": {"secrets": ["HF_TOKEN"]},
    }
    with FakeService() as service:
        service.secrets = {"HF_TOKEN": SECRET}
        run = Run(folder / "job", service.url, document, template="script_line", max_restarts=0)
        run.start(environ={"TMPDIR": str(temporary)})
        wait_for(lambda: len(service.series("train/loss")) >= 2, "two steps")
        yield run, temporary
        attacked.touch()
        run.wait(120)


def test_files_of_a_running_job_are_private(running: tuple[Run, Path]) -> None:
    run, temporary = running
    attempt = run.layout.attempt("1")
    # The rest is what the service writes.
    own = [path for path in attempt.root.rglob("*") if path.name not in {"launch.json", "token", "outer.log"}]
    made = [*own, attempt.work, *attempt.work.rglob("*")]
    assert {"logs", "spool", "work"} <= {path.name for path in made}
    names = {path.name for path in temporary.iterdir()}
    assert f"trainyard-{os.getuid()}" in names
    assert not [name for name in names if name.startswith("torchinductor_")]
    shared_memory = [Path(name) for pid in processes_of(attempt) for name in shared_memory_of(pid)]
    paths = [*made, *temporary.rglob("*"), *shared_memory]
    assert [path for path in paths if is_open(path) and all(map(is_open, folders_of(path, run)))] == []


def is_open(path: Path) -> bool:
    """Return whether other accounts may do anything with a file or folder; not with a file that was replaced since."""
    try:
        return path.lstat().st_mode & 0o077 != 0
    except FileNotFoundError:
        return False


def folders_of(path: Path, run: Run) -> list[Path]:
    """Return the folders that the job made above a file."""
    attempt = run.layout.attempt("1").root
    return [folder for folder in path.parents if folder.is_relative_to(attempt) and folder != attempt]


def shared_memory_of(pid: int) -> set[str]:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        names = (line.split(maxsplit=5)[-1] for line in lines)
        return {name for name in names if name.startswith("/dev/shm/")}
    return set()


def test_processes_of_a_running_job_show_no_secret(running: tuple[Run, Path]) -> None:
    run, _ = running
    attempt = run.layout.attempt("1")
    secrets = [SECRET, attempt.token.read_text().strip()]
    pids = processes_of(attempt)
    assert len(pids) >= 4
    environments = 0
    for pid in pids:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        assert not any(secret in command for secret in secrets)
        environment = Path(f"/proc/{pid}/environ")
        assert environment.stat().st_mode & 0o077 == 0
        environments += SECRET in environment.read_text()
    assert environments == 2, "the ranks alone have the secret"


def test_trackers_of_a_running_job_serve_nobody_else(running: tuple[Run, Path]) -> None:
    run, _ = running
    answers = []
    for address, port in listening_sockets(processes_of(run.layout.attempt("1"))):
        with suppress(httpx.HTTPError):
            url = f"http://{address}:{port}/api/2.0/mlflow/runs/create"
            answers.append(httpx.post(url, json={}, timeout=2, trust_env=False).status_code)
    assert answers == [401]
