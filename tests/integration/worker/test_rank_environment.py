"""A spec's variables and secrets are in the environment of the ranks, and in that of no other process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, store_code

SECRET_VALUE = "hush-hush-4711"
PROGRAM = """
import json, os, sys
from pathlib import Path

def environ(pid):
    return dict(part.partition("=")[::2] for part in Path(f"/proc/{pid}/environ").read_text().split(chr(0)) if part)

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

torchrun = os.getppid()
seen = [dict(os.environ), environ(torchrun), environ(parent(torchrun))]
Path(f"environ-{os.environ['RANK']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}.json").write_text(json.dumps(seen))
assert sys.stdin.read() == ""
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(3)
"""


@pytest.fixture
def script(tmp_path: Path) -> dict[str, object]:
    return {"task": "script", "argv": ["train.py"], "code": store_code(tmp_path, PROGRAM), "gpus": 2}


def run_with(tmp_path: Path, service: FakeService, script: dict[str, object], **environment: object) -> Run:
    document = {**script, "environment": environment}
    return Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=1)


@pytest.mark.cpu_seconds(8)
def test_only_the_ranks_have_variables_and_secrets(tmp_path: Path, script: dict[str, object]) -> None:
    marker = tmp_path / "marker"
    given = {"APP_MODE": "x y", "OMP_NUM_THREADS": "3", "PYTHONWARNINGS": "ignore", "BROWSER": f"touch {marker}"}
    with FakeService() as service:
        service.secrets = {"HF_TOKEN": SECRET_VALUE}
        run = run_with(tmp_path, service, script, variables=given, secrets=["HF_TOKEN"])
        attempt = run.run()
        assert finish_of(attempt, 2).reason == "completed", attempt.launch_log.read_text()[-2000:]
    for rank in range(2):
        for restart in range(2):
            own, *others = json.loads((attempt.work / f"environ-{rank}-{restart}.json").read_text())
            assert {name: own[name] for name in given} == given
            assert own["HF_TOKEN"] == SECRET_VALUE
            assert own["RANK"] == str(rank)
            for other in others:
                assert not {"APP_MODE", "PYTHONWARNINGS", "BROWSER", "HF_TOKEN"} & other.keys()
                assert other["OMP_NUM_THREADS"] != "3"
    for file in run.layout.root.rglob("*"):
        if file.is_file() and not file.name.startswith("environ-"):
            assert SECRET_VALUE not in file.read_text(errors="replace"), file


def test_missing_secret_rejects_the_attempt_with_the_remedy(tmp_path: Path, script: dict[str, object]) -> None:
    with FakeService() as service:
        service.secrets = {"A_TOKEN": SECRET_VALUE}
        attempt = run_with(tmp_path, service, script, secrets=["A_TOKEN", "B_TOKEN"]).run()
        record = finish_of(attempt, 1)
        assert service.finishes[-1] == record
    assert record.reason == "rejected"
    assert record.failure is not None
    assert record.failure.message == (
        "environment.secrets: B_TOKEN was deleted or cannot be decrypted; store it again with "
        "`trainyard secrets set B_TOKEN` and retry the job"
    )
    assert not list(attempt.work.glob("environ-*"))


@pytest.mark.cpu_seconds(8)
def test_unreachable_service_fails_an_attempt_with_secrets(tmp_path: Path, script: dict[str, object]) -> None:
    service = FakeService()
    attempt = run_with(tmp_path, service, script, secrets=["A_TOKEN"]).prepare()
    program = "\n".join(
        [
            "import sys; from worker.launcher import claim, supervise",
            "claim._SECRETS_WAIT_SECONDS = supervise._FINISH_SECONDS = 0.5; supervise.run(sys.argv[1])",
        ]
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", program, str(attempt.root)], env=environ, check=True, timeout=60)
    record = finish_of(attempt, 1)
    assert record.failure is not None
    assert (record.reason, record.failure.final) == ("error", False)
    assert "cannot be reached" in record.failure.message
