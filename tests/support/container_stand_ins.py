"""Stand-ins for container runtimes that Debian does not have: their command lines and processes, as documented.

Each accepts only options of its documentation, and runs the command on the machine itself. Called by the name of the
runtime's program.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

PATH = "/usr/local/bin:/usr/bin:/bin"
PROGRAMS = {"apptainer": "apptainer", "enroot": "enroot", "pyxis": "srun"}


def install(folder: Path) -> None:
    """Write the programs into a folder."""
    folder.mkdir()
    for program in PROGRAMS.values():
        path = folder / program
        command = shlex.join([sys.executable, "-I", __file__, program])
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)


def apptainer(arguments: list[str]) -> int:
    """Apptainer's process stays the parent of the container's first one and forwards signals to it."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in ("--cleanenv", "--no-eval", "--no-home", "--nv"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("--no-mount")
    parser.add_argument("--bind", action="append")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    assert arguments.pop(0) == "exec"
    options = parser.parse_args(arguments)
    check_mounts(options.bind, ":")
    assert options.cleanenv
    child = subprocess.Popen(options.rest[1:], env={"PATH": PATH, "APPTAINER_NAME": "image"})
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: child.send_signal(number))
    return as_shells_do(child.wait())


def enroot(arguments: list[str]) -> int:
    """Enroot becomes the container's first process."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--mount", action="append")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    assert arguments.pop(0) == "start"
    options = parser.parse_args(arguments)
    check_mounts(options.mount, ":")
    rest = [word for word in options.rest if word != "--"]
    os.execvpe(rest[1], rest[1:], {"PATH": PATH, **dict(one.split("=", 1) for one in options.env)})


def srun(arguments: list[str]) -> int:
    """The container is a child of Slurm's daemon. srun sends its input, and the task's input ends with srun."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    flags = ("--overlap", "--quiet", "--pty", "--no-container-mount-home", "--no-container-entrypoint")
    values = ("jobid", "nodes", "ntasks", "nodelist", "mem", "cpu-bind", "mpi", "kill-on-bad-exit")
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    for value in (*values, "container-image", "container-mounts", "container-workdir"):
        parser.add_argument(f"--{value}", required=True)
    parser.add_argument("--input")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    check_mounts(options.container_mounts.split(","), ":")
    assert options.pty == (options.input is None)
    denied = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD")
    environ = {name: value for name, value in os.environ.items() if name not in denied}
    if options.pty:
        # Of Slurm's daemon and a terminal of its own; here the task has the caller's.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        folder = options.container_workdir
        return as_shells_do(subprocess.call(options.rest, env={**environ, "PATH": PATH}, cwd=folder))
    task = subprocess.Popen(
        options.rest,
        env={**environ, "PATH": PATH},
        stdin=subprocess.PIPE,
        cwd=options.container_workdir,
        start_new_session=True,
    )
    threading.Thread(target=copy_input, args=(task,), daemon=True).start()
    return as_shells_do(task.wait())


def copy_input(task: "subprocess.Popen[bytes]") -> None:
    assert task.stdin is not None
    while data := os.read(0, 65536):
        task.stdin.write(data)
        task.stdin.flush()
    task.stdin.close()


def check_mounts(mounts: list[str], separator: str) -> None:
    for mount in mounts:
        assert Path(mount.split(separator)[0]).exists(), mount


def as_shells_do(status: int) -> int:
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    runtimes = {"apptainer": apptainer, "enroot": enroot, "srun": srun}
    sys.exit(runtimes[sys.argv[1]](sys.argv[2:]))
