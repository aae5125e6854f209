"""The preparation of a node, run by bash: modules, activation and setup lines, and what each failure states."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.launch import LaunchDocument
from worker.environment.preparation import modules_files, read_result
from worker.environment.prepare import EnvironmentRejectedError, InterruptedPreparationError, prepare
from worker.environment.prepared import Prepared

ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "TRAINYARD_ATTEMPT": "a1"}
MODULES = """
module() {
  case "$1 $2" in
    "load cuda/12") export CUDA_HOME=/opt/cuda LD_LIBRARY_PATH=/opt/cuda/lib; unset DROPPED;;
    "load python/3") export PATH="$FAKE_BIN:$PATH";;
    *) echo "ERROR: Unable to locate a modulefile for '$2'" >&2; return 1;;
  esac
}
false
"""


@pytest.fixture
def node(tmp_path: Path) -> "Node":
    return Node(tmp_path)


class Node:
    """One node with an attempt folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.layout = AttemptLayout(folder / "attempt")
        self.layout.root.mkdir()
        self.log = self.layout.node_log(0)
        self.modules_init = folder / "init file 'x'"
        self.modules_init.write_text(MODULES)

    def prepare(self, environment: dict[str, Any], *, site_setup: str = "", **options: Any) -> Prepared:
        environ = {**ENVIRON, **options.pop("environ", {})}
        return prepare(self.layout, self.launch(environment, site_setup), self.log, environ, **options)

    def launch(self, environment: dict[str, Any], site_setup: str = "") -> LaunchDocument:
        return LaunchDocument(
            job_id="job",
            attempt_id="a1",
            attempt=1,
            tag="ty-test-a1",
            service_url="http://127.0.0.1:1",
            execution=1,
            max_restarts=0,
            ranks_per_node=1,
            site_setup=site_setup,
            modules_init=str(self.modules_init),
            spec=parse_spec({"task": "script", "argv": ["/p.py"], "environment": environment}),
        )

    def rejection(self, environment: dict[str, Any], **options: Any) -> str:
        with pytest.raises(EnvironmentRejectedError) as caught:
            self.prepare(environment, **options)
        return str(caught.value)

    def python(self, folder: Path) -> Path:
        """Make a file that counts as an interpreter."""
        path = folder / "bin" / "python"
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path


class TestModules:
    def test_changes_of_modules_are_what_the_ranks_get(self, node: Node) -> None:
        prepared = node.prepare({"modules": ["cuda/12"]}, environ={"DROPPED": "1"})
        assert prepared.changes.assigned == {"CUDA_HOME": "/opt/cuda", "LD_LIBRARY_PATH": "/opt/cuda/lib"}
        assert prepared.changes.removed == ("DROPPED",)
        assert prepared.interpreter == sys.executable

    def test_python_of_a_module_is_that_of_the_ranks(self, node: Node) -> None:
        python = node.python(node.folder / "tree").with_name("python3")
        python.with_name("python").rename(python)
        prepared = node.prepare({"modules": ["cuda/12", "python/3"]}, environ={"FAKE_BIN": str(python.parent)})
        assert prepared.interpreter == str(python)

    def test_missing_module_is_named_with_the_output(self, node: Node) -> None:
        message = node.rejection({"modules": ["cuda/12", "cuda/99"]})
        assert message.startswith("environment.modules: `module load cuda/99` failed with exit code 1 on ")
        assert "ERROR: Unable to locate a modulefile for 'cuda/99'" in message
        assert "Unable to locate" in node.log.read_text()

    def test_init_file_without_the_command_is_named(self, node: Node) -> None:
        node.modules_init.write_text("true\n")
        message = node.rejection({"modules": ["cuda/12"]})
        assert message.startswith(f"environment.modules: `source {node.modules_init}` failed")
        assert "does not define the command module" in message

    def test_init_file_is_searched_in_the_home_of_modules_first(self) -> None:
        files = modules_files({"MODULESHOME": "/opt/modules", "LMOD_PKG": "/opt/lmod"})
        assert files[:2] == [Path("/opt/modules/init/bash"), Path("/opt/lmod/init/bash")]
        assert Path("/etc/profile.d/modules.sh") in modules_files({})


class TestPythons:
    def test_virtual_environment_is_first_on_the_path(self, node: Node) -> None:
        folder = node.folder / "my $(touch x) 'env'"
        prepared = node.prepare({"venv": str(folder)})
        assert prepared.interpreter == f"{folder}/bin/python"
        assert prepared.changes.assigned == {"VIRTUAL_ENV": str(folder), "PATH": f"{folder}/bin:/usr/bin:/bin"}
        assert not list(node.layout.root.glob("x*"))

    def test_interpreter_changes_no_variable(self, node: Node) -> None:
        assert node.prepare({"python": "/opt/python3"}) == Prepared("/opt/python3")

    def test_conda_prefix_is_activated_with_its_scripts(self, node: Node) -> None:
        prefix = node.python(node.folder / "envs" / "mine").parents[1]
        scripts = prefix / "etc" / "conda" / "activate.d"
        scripts.mkdir(parents=True)
        (scripts / "a.sh").write_text("export FROM_PACKAGE=$CONDA_PREFIX\nfalse\n")
        prepared = node.prepare({"conda": str(prefix)})
        assert prepared.interpreter == f"{prefix}/bin/python"
        assert prepared.changes.assigned == {
            "CONDA_PREFIX": str(prefix),
            "CONDA_DEFAULT_ENV": str(prefix),
            "CONDA_SHLVL": "1",
            "FROM_PACKAGE": str(prefix),
            "PATH": f"{prefix}/bin:/usr/bin:/bin",
        }

    @pytest.mark.parametrize("where", ["root", "variable", "list", "home"])
    def test_conda_name_is_searched_where_conda_has_environments(self, node: Node, where: str) -> None:
        root, home = node.folder / "miniforge", node.folder / "home"
        (home / ".conda").mkdir(parents=True)
        envs = {
            "root": root / "envs",
            "variable": node.folder / "scratch",
            "list": node.folder / "listed",
            "home": home / ".conda" / "envs",
        }[where]
        prefix = node.python(envs / "mine").parents[1]
        environ = {"HOME": str(home), "CONDA_EXE": str(node.python(root).with_name("conda"))}
        (root / "bin" / "python").rename(environ["CONDA_EXE"])
        if where == "variable":
            environ["CONDA_ENVS_PATH"] = f"/absent:{envs}"
        if where == "list":
            (home / ".conda" / "environments.txt").write_text(f"/absent/mine\n{prefix}\n")
        assert node.prepare({"conda": "mine"}, environ=environ).interpreter == f"{prefix}/bin/python"

    def test_unknown_conda_environment_is_rejected_with_the_folders(self, node: Node) -> None:
        message = node.rejection({"conda": "mine"}, environ={"CONDA_ENVS_PATH": "/scratch/envs"})
        assert message.startswith("environment.conda: `mine` failed with exit code 1")
        assert "/scratch/envs" in message


class TestSetup:
    def test_lines_run_in_order_in_one_shell_after_the_python(self, node: Node) -> None:
        lines = ["a='1 2'", 'export B="$a $VIRTUAL_ENV"', "cd /", "[ $PWD = / ] || exit 4", "f() { export C=f; }; f"]
        prepared = node.prepare({"venv": "/v", "setup": lines})
        assert (prepared.changes.assigned["B"], prepared.changes.assigned["C"]) == ("1 2 /v", "f")
        assert "PWD" not in prepared.changes.assigned

    def test_values_of_several_lines_are_exact(self, node: Node) -> None:
        prepared = node.prepare({"setup": ["export A=$'x\\ny=z\\xff'", "set -a", "LATER=1", "set +a"]})
        assert prepared.changes.assigned == {"A": "x\ny=z\udcff", "LATER": "1"}

    @pytest.mark.parametrize(
        ("line", "verdict"),
        [
            ("exit 1", "failed with exit code 1"),
            ("exit 0", "ended the shell"),
            ("exec true", "ended the shell"),
            ("exec 8>&- 9>&-; exec false", "failed with exit code 1"),
            ("false", "failed with exit code 1"),
            ("echo 'unclosed", "failed with exit code"),
            ("kill -9 $$", "was ended by signal 9"),
            ("no-such-command --x", "failed with exit code 127"),
        ],
    )
    def test_failing_line_is_rejected_with_its_text(self, node: Node, line: str, verdict: str) -> None:
        message = node.rejection({"setup": ["true", line, "touch reached"]})
        assert message.startswith(f"environment.setup: `{line}` {verdict}"), message
        assert not (node.layout.root / "reached").exists()

    def test_hanging_line_is_ended_with_its_processes(self, node: Node) -> None:
        started = time.monotonic()
        message = node.rejection({"setup": ["sleep 987 & sleep 986"]}, seconds=0.5)
        assert message.startswith("environment.setup: `sleep 987 & sleep 986` did not end within 0 seconds")
        assert time.monotonic() - started < 20
        assert not subprocess.run(["pgrep", "-f", "sleep 98[67]"], capture_output=True, text=True).stdout

    def test_background_process_does_not_hold_up_the_preparation(self, node: Node) -> None:
        assert node.prepare({"setup": ["sleep 985 &", "export A=1"]}).changes.assigned == {"A": "1"}

    def test_long_output_is_truncated_in_the_log(self, node: Node) -> None:
        line = "head -c 100000000 /dev/zero | tr '\\0' x; echo; echo the end; false"
        message = node.rejection({"setup": [line]})
        assert message.endswith("the end")
        assert len(message) < 4000
        assert node.log.stat().st_size < 2 * 1024 * 1024
        assert "further output is not logged" in node.log.read_text()

    def test_preparation_ends_when_the_job_is_requested_to_stop(self, node: Node) -> None:
        with pytest.raises(InterruptedPreparationError):
            node.prepare({"setup": ["sleep 984"]}, interrupted=lambda: True)

    def test_line_that_writes_to_the_result_gets_an_error_at_most(self, node: Node) -> None:
        noise = "for fd in /proc/$$/fd/*; do head -c 300 /dev/urandom > $fd; done 2>/dev/null; true"
        with contextlib.suppress(EnvironmentRejectedError):
            node.prepare({"setup": [noise]})


class TestSiteSetup:
    def test_file_of_the_administrator_is_for_all_jobs(self, node: Node) -> None:
        python = node.python(node.folder / "site").with_name("python3")
        python.with_name("python").rename(python)
        file = node.folder / "site.sh"
        file.write_text(f"export SITE=1 PATH={python.parent}:$PATH\n")
        prepared = node.prepare({}, site_setup=str(file))
        assert prepared.changes.assigned["SITE"] == "1"
        assert prepared.interpreter == sys.executable

    def test_missing_file_is_rejected_by_the_name_of_the_setting(self, node: Node) -> None:
        message = node.rejection({}, site_setup="/etc/absent.sh")
        assert message.startswith("TRAINYARD_SITE_SETUP: `source /etc/absent.sh` failed with exit code 1")


@pytest.mark.parametrize(
    "content", [b"", b"0\0", b"environment\0A=1\0", b"\xff\xfe", b"environment\0end\0", b"9999999\0=x\0" * 5]
)
def test_incomplete_results_are_read_without_an_error(content: bytes) -> None:
    assert read_result(content).variables == {}
