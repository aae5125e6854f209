"""How a process of the ranks' Python becomes a command."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.environment import start_command


def start(*command: str, path: str = os.defpath, **variables: str) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-I", "-S", "-c", inspect.getsource(start_command), *command]
    return subprocess.run(program, env={"PATH": path, **variables}, capture_output=True, text=True)


def test_python_is_the_interpreter_of_the_process() -> None:
    done = start("python3", "-c", "import sys; print(sys.executable, sys.argv[1:])", "a b", "")
    assert done.stdout == f"{sys.executable} ['a b', '']\n", done.stderr


def test_folder_of_the_interpreter_is_the_first_of_the_search_path() -> None:
    folder = str(Path(sys.executable).parent)
    assert start("sh", "-c", "echo $PATH", path=f"/bin:{folder}:/usr/bin").stdout == f"{folder}:/bin:/usr/bin\n"


def test_python_path_of_env_is_joined_with_the_folder_of_the_hook(tmp_path: Path) -> None:
    read = ("python", "-c", "import os; print(os.environ['PYTHONPATH'], os.environ['PATH'], os.environ['b_c'])")
    joined = start("env", "PYTHONPATH=src:/lib", "PATH=/x:/bin", "b_c=1=2", *read, PYTHONPATH="/hook:/module").stdout
    folder = Path(sys.executable).parent
    assert joined == f"/hook:{Path.cwd()}/src:/lib:/module {folder}:/x:/bin 1=2\n"
    assert start("env", "PYTHONPATH=", "printenv", "PYTHONPATH", PYTHONPATH="/hook").stdout == "/hook\n"


def test_env_with_other_options_is_executed() -> None:
    assert "A=1" in start("env", "-u", "B", "A=1", "/usr/bin/env", PYTHONPATH="/hook").stdout
    assert start("env", "A=1").stdout.count("A=1") == 1


@pytest.mark.parametrize("option", ["-i", "-", "--ignore-environment"])
def test_env_that_clears_leaves_what_the_launcher_has_set(option: str) -> None:
    own = {"TRAINYARD_ATTEMPT": "a", "RANK": "0", "LOCAL_WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": "1"}
    own |= {"MLFLOW_TRACKING_URI": "u", "no_proxy": "h", "TMPDIR": "/t"}
    before = own | {"HOME": "/root", "MY": "1", "PYTHONPATH": "/hook:/module"}
    done = start("env", "B=2", "env", option, "A=1", "PYTHONPATH=src", "/usr/bin/env", path="/mine", **before)
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    expected = own | {"A": "1", "PYTHONPATH": f"/hook:{Path.cwd()}/src", "PATH": path}
    assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == expected, done.stderr


@pytest.mark.parametrize(
    ("text", "mode", "status", "message"),
    [
        ("#!/bin/sh\nexit 5\n", 0o755, 5, ""),
        ("#!/bin/sh\n", 0o644, 126, "cannot be executed: Permission denied"),
        ("#!/no/interpreter\n", 0o755, 127, "names an interpreter in its first line that is not on this node"),
        (None, 0, 127, "is not on this node"),
    ],
)
def test_status_is_that_of_a_shell(tmp_path: Path, text: str | None, mode: int, status: int, message: str) -> None:
    program = tmp_path / "run"
    if text is not None:
        program.write_text(text)
        program.chmod(mode)
    done = start(str(program))
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr


def test_program_that_is_not_on_the_search_path_is_named_last() -> None:
    done = start("no-such-program")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        127,
        "'no-such-program' is not on the search path of this node",
    )


def test_a_pipe_ends_its_writer_as_in_a_shell() -> None:
    done = start("bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}", path="/usr/bin:/bin")
    assert (done.stdout, done.stderr) == ("y\n141\n", "")


def test_text_without_an_interpreter_is_executed_by_sh(tmp_path: Path) -> None:
    script = tmp_path / "run"
    script.write_text('echo "$0 $1"\nexit 6\n')
    script.chmod(0o755)
    for program in (str(script), "run"):
        done = start(program, "a b", path=f"{tmp_path}:/bin")
        assert (done.stdout, done.returncode) == (f"{script} a b\n", 6)


def test_binary_of_another_system_is_not_executed_by_sh(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_bytes(b"MZ\0\0")
    (tmp_path / "a.out").chmod(0o755)
    done = start(str(tmp_path / "a.out"))
    assert done.returncode == 126
    assert "cannot be executed: Exec format error" in done.stderr
