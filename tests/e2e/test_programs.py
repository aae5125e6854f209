"""Programs in the style of popular repositories, by their documented commands: what a shell does, a job does."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.support.hf import save_llama
from tests.support.packages import require_program
from trainyard.client import Client

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAMS = Path(__file__).parent / "programs"
STEPS = list(range(1, 41))
SCALARS = {"loss": STEPS}
EVERY_TENTH = [10, 20, 30, 40]
OWN_ENVIRONMENT = Path(sys.prefix, "programs")
"""`make programs` installs it, with packages that the service's environment lacks."""
_OF_ONE_RUN = re.compile(
    r"(?<=tfevents).*|\d{9,}\.\d+|[A-Z][a-z]{2}\d\d_[\d-]+_[^/]+|\d{8}-\d{6}|\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d"
)
"""Times, hosts and processes in names of files and folders."""


class Case(NamedTuple):
    """A command, and what it does in a shell and as a job."""

    command: str
    line: str
    """A line of the output."""
    files: tuple[str, ...] = ()
    """Artifacts of the job below `output/`, among others."""
    curves: Mapping[str, list[int]] = MappingProxyType({})
    """Steps by name, among others."""
    code: int = 0
    needs: str = ""
    """A program of the system."""
    options: str = ""
    """Options of `trainyard run`."""
    environment: Path = Path(sys.prefix)
    """The virtual environment of the shell."""


def own(command: str, line: str, files: tuple[str, ...] = (), options: str = "") -> Case:
    """Return a case that runs in an environment of its own."""
    options = f"--venv {OWN_ENVIRONMENT} {options}"
    return Case(command, line, files, options=options, environment=OWN_ENVIRONMENT)


END = "steps of this start: 40"
HF = "python hf_trainer.py --max_steps 40 --logging_steps 10 --save_steps 20 --use_cpu --disable_tqdm True --report_to"
CASES = (
    Case("python nanogpt.py", END, ("out/ckpt.pt",)),
    Case(
        "python nanogpt.py config_small.py --out_dir=runs/small --max_iters=20", "at the gate", ("runs/small/ckpt.pt",)
    ),
    Case("python loop.py --tracker tensorboard", END, ("out/rank0.pt",), SCALARS),
    Case("python loop.py --tracker mlflow --out results/a", END, ("results/a/rank0.pt",), SCALARS),
    Case("python -u -W ignore -m loop --tracker wandb", END, ("out/rank0.pt",), SCALARS),
    Case("python loop.py --steps many", "", code=2),
    Case("""python -c 'import sys; print(sys.argv); open("c.txt", "w")' 'a b'""", "['-c', 'a b']"),
    Case("python folders.py", "folder 1 ''", ("outputs/weights.pt", "runs/exp1/weights.pt"), code=1),
    Case("python lightning_fit.py", END, ("checkpoints/last.ckpt",), {"loss": [n - 1 for n in STEPS]}),
    Case(
        f"{HF} tensorboard --output_dir out",
        END,
        ("out/checkpoint-40/trainer_state.json",),
        {"train/loss": EVERY_TENTH},
    ),
    Case(f"{HF} wandb", END, ("trainer_output/checkpoint-20/model.safetensors",), {"train/loss": EVERY_TENTH}),
    Case(f"{HF} mlflow", END, ("trainer_output/checkpoint-40/optimizer.pt",), {"loss": EVERY_TENTH}),
    Case("accelerate launch --cpu --num_processes 1 accelerate_loop.py", END, ("results/step",), SCALARS),
    Case("python accelerate_loop.py --log_with wandb --output_dir out", END, ("out/step",), SCALARS),
    Case("python accelerate_loop.py --log_with mlflow --output_dir out", END, ("out/step",), SCALARS),
    Case(
        "trl sft --model_name_or_path ./llama --dataset_name ./data --output_dir out --max_steps 4 --logging_steps 1 "
        "--report_to tensorboard --use_cpu --max_length 32",
        "",
        ("out/checkpoint-4/model.safetensors",),
        {"train/loss": [1, 2, 3, 4]},
    ),
    Case("python commands.py click train --lr 3e-4 a 'b c'", "click 0.0003 ('a', 'b c')"),
    Case("python commands.py typer --name x", "typer 0.1 x", code=3),
    Case("./run_twice.sh --tracker tensorboard", END, ("out/second/rank0.pt", "results/first.txt"), SCALARS),
    Case("python pools.py", "sum 2.0"),
    Case("make train", END, ("out/counter", "out/model.txt"), needs="make"),
    Case("make fail", "", code=2, needs="make"),
    Case("bash -c 'cc counter.c && ./a.out state 5'", END, code=5, needs="cc"),
    # `run` prints the log of rank 0.
    Case("torchrun --standalone --nproc-per-node 2 loop.py", "rank 0 of 2", ("out/rank1.pt",)),
    Case("bash run_torchrun.sh", "rank 1 of 2", ("checkpoints/rank1.pt",)),
    Case("python -m torch.distributed.run --standalone --nproc-per-node=2 loop.py", "rank 0 of 2", ("out/rank1.pt",)),
    Case("python -m accelerate.commands.launch --cpu --num_processes 1 accelerate_loop.py", END, ("results/step",)),
    Case("accelerate launch --config_file conf/one_process.yaml accelerate_loop.py", END, ("results/step",), SCALARS),
    Case("timeout 5m python -O -X dev loop.py --out runs/a", END, ("runs/a/rank0.pt",)),
    Case("env OMP_NUM_THREADS=1 nice -n 1 python loop.py --out=results", END, ("results/rank0.pt",)),
    Case(
        "bash -c 'python loop.py --out out/a && python loop.py --out out/b'", END, ("out/a/rank0.pt", "out/b/rank0.pt")
    ),
    Case("bash -c 'python loop.py --steps 20 | tee out.txt; exit 7'", "at the gate", code=7),
    Case("python timm_train.py data -c conf/timm.yaml", "*** tiny: 32 rows, 2 epochs on 1"),
    Case(
        "./distributed_train.sh 2 data --experiment a",
        "*** small: 32 rows, 3 epochs on 2",
        ("output/train/a/args.yaml",),
    ),
    own("env KERAS_BACKEND=torch python keras_fit.py", END, ("checkpoints/model.keras", "logs/curve.csv")),
    own(
        "python fastai_fit.py",
        "epochs: 4",
        ("models/model_3.pth", "results.csv"),
        options="--keep models --keep results.csv",
    ),
    own("python hydra_fit.py optimizer.lr=0.1", "lr 0.1 steps 40"),
    own("python hydra_fit.py -m optimizer.lr=0.1,0.2", "lr 0.2 steps 40"),
    own("jupyter nbconvert --to notebook --execute --output done.ipynb notebook.ipynb", "", ("results/steps.txt",)),
    own("papermill notebook.ipynb done.ipynb -p steps 3", "", ("done.ipynb", "results/steps.txt")),
    own("jupyter execute --inplace notebook.ipynb", "", ("results/steps.txt",)),
    Case("mpirun --allow-run-as-root --oversubscribe -np 2 python loop.py", END, ("out/rank1.pt",), needs="mpirun"),
)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return two copies of the programs, for the shell and the job; the second one is the working directory."""
    copies = (tmp_path / "shell", tmp_path / "job")
    for copy in copies:
        shutil.copytree(PROGRAMS, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "data").mkdir()
        (copy / "data" / "train.jsonl").write_text('{"text": "hello world"}\n' * 32)
    monkeypatch.chdir(copies[1])
    return copies


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.command[:60] for case in CASES])
def test_a_job_does_what_a_shell_does(
    run: "Callable[..., subprocess.CompletedProcess[str]]",
    client: Client,
    runs: Path,
    folders: tuple[Path, Path],
    number: int,
) -> None:
    case, name = CASES[number], f"case-{number}"
    require_program(case.needs)
    if "./llama" in case.command:
        for folder in folders:
            save_llama(folder / "llama")
    uploaded = files_below(folders[1])
    shell = run_in_shell(case, folders[0])
    assert (shell.returncode, case.line in shell.stdout) == (case.code, True), shell.stdout + shell.stderr
    options = ("--retries", "0", "--name", name, *shlex.split(case.options))
    done = run("", *options, "--", *shlex.split(case.command))
    assert (done.returncode, case.line in done.stdout) == (case.code, True), done.stdout + done.stderr
    job = client.job(name).id
    assert files_below(runs / job / "work") - uploaded == files_below(folders[0]) - uploaded
    assert {f"output/{path}" for path in case.files} <= {file.path for file in client.artifacts(job)}
    curves = {series.key: list(series.steps) for series in client.metrics(job).series}
    assert {key: curves.get(key) for key in case.curves} == case.curves


def run_in_shell(case: Case, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command with the trackers' clients offline."""
    environ = os.environ | {
        "PATH": f"{case.environment}/bin{os.pathsep}{os.environ['PATH']}",
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
    }
    return subprocess.run(
        ["bash", "-c", case.command],
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def files_below(folder: Path) -> set[str]:
    """Return the files without the trackers' own and caches, and without times and hosts in their names."""
    root = folder.resolve()
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {
        _OF_ONE_RUN.sub("X", path.as_posix())
        for path in paths
        if not {"wandb", "mlruns", "mlflow.db", "__pycache__"}.intersection(path.parts)
    }
