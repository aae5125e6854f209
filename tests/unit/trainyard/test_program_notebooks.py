"""The texts that execute a notebook: what they save, and with which nbconvert."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.client.program_notebooks import NBCONVERT, NOTEBOOK

STAND_INS = {
    "nbformat.py": "def write(notebook, path):\n    open(path, 'w').write(' '.join(notebook))\n",
    "nbconvert/__init__.py": "",
    "nbconvert/preprocessors.py": """
class ExecutePreprocessor:
    nb = []

    def preprocess_cell(self, cell, resources, index):
        self.nb.append(cell)
        if cell == "bad":
            raise ValueError(cell)
        return cell, resources
""",
    "nbconvert/nbconvertapp.py": """
from nbconvert.preprocessors import ExecutePreprocessor

class NbConvertApp:
    @staticmethod
    def launch_instance(argv):
        print(argv)
        for index, cell in enumerate(["first", "bad", "last"]):
            ExecutePreprocessor().preprocess_cell(cell, {"metadata": {"name": "nb"}}, index)
""",
}


def execute(text: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a text in a Python without the packages of this one."""
    (folder / "artifacts").mkdir()
    environ = os.environ | {"PYTHONPATH": str(folder), "TRAINYARD_ARTIFACT_DIR": str(folder / "artifacts")}
    command = [sys.executable, "-S", "-c", text, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("text", "command", "argv"),
    [
        (NOTEBOOK, "x/nb.ipynb --debug", "--to notebook --execute --output-dir {folder}/artifacts x/nb.ipynb --debug"),
        (NBCONVERT, "jupyter nbconvert --execute nb.ipynb", "--execute nb.ipynb"),
        (NBCONVERT, "python -m jupyter nbconvert nb.ipynb --execute", "nb.ipynb --execute"),
        (NBCONVERT, "/envs/a/bin/jupyter-nbconvert --execute nb.ipynb", "--execute nb.ipynb"),
    ],
)
def test_notebook_that_fails_is_saved_with_its_results(tmp_path: Path, text: str, command: str, argv: str) -> None:
    for name, content in STAND_INS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    done = execute(text, tmp_path, *command.split())
    assert done.stdout == f"{argv.format(folder=tmp_path).split()}\n", done.stderr
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: bad")
    assert (tmp_path / "artifacts" / "nb.ipynb").read_text() == "first bad"


def test_nbconvert_of_another_python_runs_as_it_is(tmp_path: Path) -> None:
    jupyter = tmp_path / "jupyter"
    jupyter.write_text('#!/bin/sh\necho own "$@"\n')
    jupyter.chmod(0o755)
    done = execute(NBCONVERT, tmp_path, str(jupyter), "nbconvert", "--execute", "nb.ipynb")
    assert done.stdout == "own nbconvert --execute nb.ipynb\n", done.stderr
