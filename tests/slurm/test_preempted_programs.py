"""Programs with relative output folders, unchanged, go on after a preemption: their files, logs and curves."""

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.slurm.conftest import slurm_service
from tests.support.live import wait_for_status
from tests.support.packages import require_program
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.client import Client, run

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).parents[1] / "e2e" / "programs"


class Case(NamedTuple):
    """A command that is interrupted after 20 of 40 steps."""

    command: str
    checkpoint: str
    """An artifact of the job below `output/`."""
    curve: str = ""
    """A curve that has one point for each of the steps."""
    starts: tuple[int, ...] = (20,)
    """The steps that are made after the preemption, by each start of the program."""
    gpus: int = 1
    resume_flag: str | None = None
    keep: tuple[str, ...] = ()
    needs: str = ""
    files: int = 0
    """How many files are in the folder of the checkpoint; 0: any number."""
    in_repository: bool = False
    """Whether the command is typed in the folder `exp` of a git repository, which has its modules in `src`."""


HF = "python hf_trainer.py --max_steps 40 --logging_steps 1 --save_steps 10 --use_cpu --report_to tensorboard"
ROUNDS = (
    (
        Case(
            "python nanogpt.py config_small.py",
            "out-small/ckpt.pt",
            resume_flag="--init_from=resume",
            keep=("out-small",),
        ),
        Case("python loop.py --tracker mlflow", "out/rank0.pt", "loss"),
        Case("make train", "out/state", needs="make"),
        Case("bash run_twice.sh", "out/first/rank0.pt", starts=(20, 40)),
    ),
    (
        # The best checkpoint replaces one of the first attempt, whose absolute path Lightning has stored.
        Case("python lightning_fit.py", "checkpoints/last.ckpt", "loss", files=2),
        Case(
            HF,
            "trainer_output/checkpoint-20/trainer_state.json",
            "train/loss",
        ),
        Case("python accelerate_loop.py", "results/step", "loss"),
        Case("python -m loop --tracker tensorboard --out runs/exp", "runs/exp/rank0.pt", "loss"),
    ),
    (
        Case("torchrun --nproc-per-node 2 loop.py --tracker tensorboard", "out/rank1.pt", "loss", gpus=2),
        Case("bash run_torchrun.sh --tracker tensorboard", "checkpoints/rank1.pt", "loss", gpus=2),
    ),
    (
        Case("mpirun --allow-run-as-root --oversubscribe -np 2 python loop.py", "out/rank1.pt", gpus=2, needs="mpirun"),
        Case("bash -c 'cc counter.c && ./a.out state'", "state", keep=("state",), needs="cc"),
        # Its curve may lack step 20: a preemption signals every process, which ends that of W&B too.
        Case("python loop.py --tracker wandb --out results", "results/rank0.pt"),
    ),
    (
        Case(
            "PYTHONPATH=../src low_a=1 python -m loop --tracker mlflow --out run1",
            "exp/run1/rank0.pt",
            "loss",
            keep=("run1",),
            in_repository=True,
        ),
        Case(
            "env -i GATE={gate} PYTHONPATH=../src python ../src/loop.py --tracker mlflow",
            "exp/out/rank0.pt",
            "loss",
            in_repository=True,
        ),
    ),
)


@pytest.fixture
def client(slurm: SlurmLab, tmp_path: Path) -> Iterator[Client]:
    with slurm_service(tmp_path / "service") as service, service.client() as made:
        yield made


@pytest.mark.parametrize("cases", ROUNDS, ids=["commands", "frameworks", "ranks", "others", "repository"])
def test_preempted_programs_go_on_from_their_output(
    slurm: SlurmLab, client: Client, tmp_path: Path, cases: tuple[Case, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    shutil.copytree(PROGRAMS, tmp_path / "code", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "repository" / "exp").mkdir(parents=True)
    (tmp_path / "repository" / "exp" / "notes.txt").touch()
    shutil.copytree(tmp_path / "code", tmp_path / "repository" / "src")
    subprocess.run(["git", "-C", str(tmp_path / "repository"), "init", "-q"], check=True)
    monkeypatch.chdir(tmp_path / "repository" / "exp")
    for case in cases:
        require_program(case.needs)
    jobs = {case: submit(client, case, tmp_path) for case in cases}
    for job in jobs.values():
        wait_until(lambda job=job: "at the gate" in client.logs(job).text, 180, "the gate")
    slurm.run("sbatch", "-p", "high", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    for job in jobs.values():
        wait_until(lambda job=job: client.attempts(job)[0].ended_at is not None, 120, "the preemption")
    gate.unlink()
    for case, job in jobs.items():
        done = wait_for_status(client, job, "succeeded", "failed", "cancelled", "lost", seconds=300)
        check(client, case, job)
        assert done.status == "succeeded", done.status_message


def submit(client: Client, case: Case, folder: Path) -> str:
    return run(
        shlex.split(case.command.replace("{gate}", str(folder / "gate"))),
        client=client,
        code=None if case.in_repository else folder / "code",
        gpus=case.gpus,
        keep=case.keep,
        resume_flag=case.resume_flag,
        partition="gpu",
        retries=0,
        env={"GATE": str(folder / "gate")},
    ).id


def check(client: Client, case: Case, job: str) -> None:
    attempts = sorted(client.attempts(job), key=lambda attempt: attempt.number)
    assert [attempt.exit_reason for attempt in attempts] == ["preempted", "completed"], case
    log = client.logs(job, attempt=2).text
    starts = [line.rpartition(" ")[2] for line in log.splitlines() if line.startswith("steps of this start:")]
    assert starts == [str(steps) for steps in case.starts], log
    artifacts = [file.path for file in client.artifacts(job)]
    assert f"output/{case.checkpoint}" in artifacts
    folder = f"output/{case.checkpoint.rpartition('/')[0]}/"
    assert not case.files or sum(path.startswith(folder) for path in artifacts) == case.files, artifacts
    curves = {series.key: list(series.steps) for series in client.metrics(job).series}
    if case.curve:
        steps = curves[case.curve]
        assert steps == list(range(steps[0], steps[0] + 40)), case
