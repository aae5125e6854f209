"""`trainyard run`: a program as it is, with the real service and its local backend."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.live import wait_for_status
from tests.support.wait import wait_until
from trainyard.client import Client

pytestmark = pytest.mark.e2e

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_output_and_curves_of_a_program_from_git_are_printed(run: Run, client: Client, tmp_path: Path) -> None:
    text = """
import os, sys
import mlflow

print("hello", sys.argv)
print(sorted(name for _, _, names in os.walk(".") for name in names))
for step in (1, 2, 3):
    mlflow.log_metric("my loss", 1 / step, step=step)
"""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / "data.bin").write_text("x")
    (tmp_path / "train.py").write_text("")
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "start"]):
        subprocess.run([*git, *command], check=True)
    done = run(text, "--name", "greet", "--", "python", "train.py", "--lr", "3e-4")
    assert done.returncode == 0, done.stderr
    assert "hello ['train.py', '--lr', '3e-4']" in done.stdout
    assert "['.gitignore', 'train.py', 'uncommitted.diff']" in done.stdout, "what git ignores is not uploaded"
    assert "my loss  █▃▁  0.3333 at step 3" in done.stderr
    job = client.job("greet")
    assert f"/jobs/{job.id}" in done.stdout
    labels = job.metadata
    assert (len(labels["git_commit"]), labels["git_branch"], labels["git_dirty"]) == (40, "main", "yes")


def test_exit_code_is_that_of_the_program(run: Run) -> None:
    done = run("raise SystemExit(7)", "--retries", "0", "--name", "seven", "--", "python", "train.py")
    assert done.returncode == 7
    assert "exit code 7" in done.stderr


def test_exception_of_the_program_is_one_execution(run: Run, client: Client) -> None:
    done = run("print('begins')\nraise ValueError('shapes')", "--name", "wrong", "--", "python", "train.py")
    assert done.returncode == 1
    assert "ValueError: shapes" in done.stderr
    assert done.stdout.count("begins") == 1
    assert len(client.attempts(client.job("wrong").id)) == 1


def test_killed_rank_is_started_again(run: Run, client: Client) -> None:
    text = """
import os, signal
from trainyard.script import checkpoint_dir

mark = checkpoint_dir() / "mark"
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
print("second start", os.environ["TRAINYARD_RESUMED"], os.environ["TRAINYARD_CHECKPOINT_DIR"] == str(mark.parent))
"""
    done = run(text, "--name", "killed", "--", "torchrun", "--nproc-per-node", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert "second start 1 True" in done.stdout
    assert any(event.type == "worker.restarted_in_place" for event in client.events(client.job("killed").id))


def test_resume_flag_is_for_starts_with_checkpoints(run: Run) -> None:
    text = """
import os, pathlib, sys, time

print("arguments", sys.argv[1:], "in", os.environ["TRAINYARD_CHECKPOINT_DIR"])
mark = pathlib.Path(os.environ["TRAINYARD_CHECKPOINT_DIR"], f"mark-{os.environ['RANK']}")
if not mark.exists():
    mark.touch()
    if os.environ["RANK"] == "0":
        time.sleep(1)
    sys.exit(3)
"""
    options = ("--gpus", "2", "--resume-flag", "--from {checkpoint_dir}/last")
    done = run(text, *options, "--", "python", "train.py", "--lr", "1")
    assert done.returncode == 0, done.stderr
    first, second = [line for line in done.stdout.splitlines() if line.startswith("arguments")]
    assert first.startswith("arguments ['--lr', '1'] in ")
    folder = first.rpartition(" ")[2]
    assert second == f"arguments ['--lr', '1', '--from', '{folder}/last'] in {folder}"


def test_python_path_of_the_command_is_joined_with_the_launcher_s(run: Run, client: Client, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "lib.py").write_text("class Wrong(Exception): pass\n")
    text = """
import os, sys
import lib, trainyard.script

print("imported", lib.__file__, os.environ["APP_A"], os.environ["low"], "RANK" in os.environ)
raise lib.Wrong("of the library")
"""
    done = run(text, "--name", "joined", "--", "env", "low=b", "PYTHONPATH=src", "APP_A=a", "python", "train.py")
    assert "src/lib.py a b False" in done.stdout, done.stderr
    error = client.job("joined").resource.error
    assert error is not None
    assert (error.type, error.message) == ("lib.Wrong", "of the library"), "the hook records the exception"


def test_program_starts_in_the_folder_of_its_repository(
    run: Run, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"lib/__init__.py": "", "lib/a.py": "A = 1", "conf.yaml": "c", "exp/sibling.py": "S = 2"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    monkeypatch.chdir(tmp_path / "exp")
    text = """
import os, pathlib
from lib.a import A
from sibling import S

pathlib.Path("out").mkdir()
pathlib.Path("out/result.txt").write_text(os.path.basename(os.getcwd()))
print("imported", A, S, open("../conf.yaml").read(), "/work:" in os.environ["PYTHONPATH"] + ":")
"""
    (tmp_path / "exp" / "own.py").write_text(text)
    done = run("", "--name", "inside", "--", "PYTHONPATH=..", "python", "own.py")
    assert "imported 1 2 c True" in done.stdout, done.stdout + done.stderr
    assert "and the program starts in its folder exp" in done.stderr
    artifacts = client.artifacts(client.job("inside").id)
    assert [artifact.path for artifact in artifacts] == ["output/exp/out/result.txt"]


SHELL_SCRIPT = """
set -e
echo "one of ${WORLD_SIZE:-none}"
python -c 'import sys; print(sys.argv[1:], sys.prefix)' "$@"
trap 'echo saved; exit 0' USR1
test -e "$TRAINYARD_CHECKPOINT_DIR/mark" && exit 3
touch "$TRAINYARD_CHECKPOINT_DIR/mark"
exit 4
"""


def test_shell_script_runs_as_in_a_shell(run: Run, client: Client, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SHELL_SCRIPT)
    done = run("", "--retries", "0", "--name", "shell", "--", "bash", "run.sh", "a b", "c")
    assert (done.returncode, "exit code 4" in done.stderr) == (4, True), done.stderr
    assert "one of none\n['a b', 'c'] " in done.stdout
    assert f"['a b', 'c'] {sys.prefix}\n" in done.stdout, "`python` is the Python of the ranks"


def test_program_that_is_absent_is_one_execution(run: Run, client: Client) -> None:
    done = run("", "--name", "absent", "--", "no-such-program", "x")
    assert done.returncode == 127
    assert "'no-such-program' is not on the search path of this node" in done.stderr
    assert len(client.attempts(client.job("absent").id)) == 1


def test_processes_of_a_launcher_get_its_variables(run: Run, tmp_path: Path) -> None:
    pattern = "^(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_PORT|TORCHELASTIC_RUN_ID)="
    names = f'env | grep -E "{pattern}" | cut -d= -f1 | sort | xargs'
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\necho $RANK: $({names})\n")
    (tmp_path / "run.sh").chmod(0o755)
    launched = run("", "--", "torchrun", "--no-python", "--nproc-per-node", "1", "./run.sh")
    assert "0: LOCAL_RANK MASTER_PORT RANK TORCHELASTIC_RUN_ID WORLD_SIZE\n" in launched.stdout, launched.stderr
    assert "\n:\n" in run("", "--", "./run.sh").stdout


@pytest.mark.heavy
def test_what_a_shell_has_started_gets_the_signal_too(run: Run, client: Client, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("trap 'echo shell warned; wait' USR1\npython train.py & wait\nwait\n")
    text = """
import signal, sys, time
def stop(*_):
    print("program warned", flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, stop)
print("runs", flush=True)
while True:
    time.sleep(0.05)
"""
    done = run(text, "--detach", "--signal", "SIGUSR1", "--name", "warned", "--", "bash", "run.sh")
    job = client.job("warned").id
    wait_until(lambda: "runs" in client.logs(job).text, 60)
    client.cancel(job)
    wait_for_status(client, job, "cancelled")
    assert {"shell warned", "program warned"} <= set(client.logs(job).text.splitlines()), done.stdout


@pytest.mark.cpu_seconds(4)
def test_a_chain_of_programs_reads_the_results_of_the_earlier_ones(run: Run, client: Client) -> None:
    text = """
import os, sys, time
from pathlib import Path

runs = filter(None, os.environ.get("TRAINYARD_AFTER", "").split(":"))
earlier = [Path(run, "artifacts", "result.txt").read_text() for run in runs]
Path(os.environ["TRAINYARD_ARTIFACT_DIR"], "result.txt").write_text(" ".join([*earlier, sys.argv[1]]))
print("results:", *earlier, sys.argv[1])
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""
    named = ("--retries", "0", "--name")
    run(text, "--detach", *named, "first", "--", "python", "train.py", "one", "2", "0")
    run(text, "--detach", *named, "second", "--after", "first", "--", "python", "train.py", "two", "0", "2")
    done = run(
        text,
        *named,
        "third",
        "--after",
        "second:ended",
        "--after",
        "first",
        "--",
        "python",
        "train.py",
        "three",
        "0",
        "0",
    )
    assert done.returncode == 0, done.stderr
    assert "results: one two one three" in done.stdout
    jobs = [client.job(name).resource for name in ("first", "second", "third")]
    assert [job.status for job in jobs] == ["succeeded", "failed", "succeeded"]
    for earlier, later in itertools.pairwise(jobs):
        attempt = client.attempts(later.id)[0]
        assert earlier.finished_at is not None
        assert attempt.submitted_at is not None
        assert earlier.finished_at <= attempt.submitted_at
        assert len(client.attempts(later.id)) == 1
