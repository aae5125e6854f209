"""What a program beside a rank gets of the rank, and which process is the rank."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from trainyard.contract.spec.containers import Mount
from worker.environment.companion.container import terminal_command
from worker.environment.companion.main import main
from worker.environment.companion.rank import companion_variables, find_rank, with_interpreter
from worker.environment.containers.plan import ContainerPlan
from worker.environment.containers.runtimes import RUNTIMES, ContainerRun

RANK = {
    "PATH": "/env/bin:/bin",
    "RANK": "1",
    "TRAINYARD_RANK": "1",
    "WORLD_SIZE": "2",
    "APP_MODE": "fast",
    "HF_TOKEN": "hush",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_ERROR_FILE": "/tmp/error.json",
    "TRAINYARD_ATTEMPT": "a1",
    "TRAINYARD_ATTEMPT_FOLDER": "/runs/j/attempts/1-a1",
    "TRAINYARD_EXECUTION": "1",
    "PYTHONSAFEPATH": "1",
}


def test_program_gets_no_secrets_and_cannot_act_as_the_rank():
    terminal = {"TERM": "xterm", "TRAINYARD_TOKEN": "secret", "PATH": "/login"}
    assert companion_variables(RANK, ["HF_TOKEN"], terminal, "/env/bin/python") == {
        "PATH": "/env/bin:/bin",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "APP_MODE": "fast",
        "TERM": "xterm",
        "TRAINYARD_ATTEMPT": "a1",
        "TRAINYARD_COMPANION": "1",
        "TRAINYARD_PYTHON": "/env/bin/python",
    }


class TestFindRank:
    @pytest.fixture
    def proc(self, tmp_path):
        """Processes by the pids of live ones, the first of the machine and this one, since each has a start time."""
        pids = iter([1, os.getpid()])

        def add(**variables):
            folder = tmp_path / str(next(pids))
            folder.mkdir()
            content = "".join(f"{name}={value}\0" for name, value in {**RANK, **variables}.items())
            (folder / "environ").write_text(content)

        add.root = tmp_path
        (tmp_path / "self").mkdir()
        (tmp_path / "999999").mkdir()
        return add

    def find(self, proc, rank=None, node=None):
        match = find_rank("a1", node, rank, proc.root)
        return match and (match.rank, match.variables["APP_MODE"])

    def test_first_process_of_the_rank_is_the_rank(self, proc):
        proc(APP_MODE="rank")
        proc(APP_MODE="child of the rank")
        assert self.find(proc, 1) == (1, "rank")
        assert self.find(proc, 0) is None

    def test_lowest_rank_of_the_node(self, proc):
        proc(TRAINYARD_RANK="3", SLURMD_NODENAME="node1")
        proc(TRAINYARD_RANK="2", SLURMD_NODENAME="node1", APP_MODE="second")
        assert self.find(proc, node="node1") == (2, "second")
        assert self.find(proc, node="node2") is None

    @pytest.mark.parametrize(
        "other", [{"TRAINYARD_ATTEMPT": "a2"}, {"TRAINYARD_COMPANION": "1"}, {"TRAINYARD_RANK": ""}]
    )
    def test_other_processes_are_no_ranks(self, proc, other):
        proc(**other)
        assert self.find(proc) is None


class TestWithInterpreter:
    @pytest.fixture
    def folders(self, tmp_path):
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "python3").touch(mode=0o755)
        return tmp_path / "first", tmp_path / "second"

    def test_folder_of_the_interpreter_comes_first(self, folders):
        first, second = folders
        path = f"{first}:{second}"
        assert with_interpreter(path, f"{first}/python3") == path
        assert with_interpreter(path, f"{second}/python3") == f"{second}:{path}"

    def test_folder_with_another_python3_does_not(self, folders):
        first, second = folders
        (second / "python3.12").touch()
        assert with_interpreter(str(first), f"{second}/python3.12") == str(first)
        assert with_interpreter(str(first), "python3") == str(first)


@pytest.mark.parametrize("arguments", ["/f", "/f exec", "/f shell -- x", "/f exec --ran 1 -- x"])
def test_usage_errors(arguments):
    with pytest.raises(SystemExit):
        main(arguments.split())


def test_folder_without_an_attempt_is_reported(tmp_path, capfd):
    assert main([str(tmp_path), "shell", "--rank", "0"]) == 125
    assert "launch.json cannot be read" in capfd.readouterr().err
    assert main([str(tmp_path), "exec", "--", "true"]) == 0
    assert '"exit_code": 125' in capfd.readouterr().out


class TestTerminalCommand:
    RUN = ContainerRun(
        "/data/image",
        ("python3", "-I", "/runs/j/init-0.py"),
        (Mount("/runs/j", "/runs/j"), Mount("/real/data", "/data", read_only=True)),
        limits={"nofile": (1024, 4096)},
        job="17",
        node="n1",
    )

    @pytest.mark.parametrize(
        ("runtime", "added", "removed"),
        [
            ("apptainer", set(), set()),
            ("charliecloud", set(), set()),
            ("docker", {"--tty"}, set()),
            ("enroot", set(), set()),
            ("podman", {"--tty"}, set()),
            ("pyxis", {"--pty"}, {"--input=all"}),
        ],
    )
    def test_container_is_that_of_the_ranks_with_a_terminal(self, runtime, added, removed):
        run = replace(self.RUN, image="debian:12") if runtime == "docker" else self.RUN
        ranks = RUNTIMES[runtime](run)
        plan = ContainerPlan(ranks.argv, ranks.variables, runtime=runtime, run=run)
        document = json.loads(json.dumps(asdict(plan)))
        made = terminal_command(document, Path("/runs/j/init-0.py"), Path("/runs/j/control-1"))
        assert set(made.argv) - set(ranks.argv) == {*added, "/runs/j/control-1"}
        assert set(ranks.argv) - set(made.argv) == removed
        assert made.argv[-1] == "/runs/j/control-1"
        assert made.variables == ranks.variables

    def test_field_of_a_newer_release_is_ignored(self):
        plan = ContainerPlan((), runtime="apptainer", run=self.RUN)
        document = json.loads(json.dumps(asdict(plan)))
        document["run"]["added_later"] = 1
        assert terminal_command(document, Path("/init"), Path("/pipe")).argv[0] == "apptainer"
