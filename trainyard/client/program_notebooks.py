"""Notebooks as programs."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from trainyard.client.program_python import PYTHON_NAME

_SAVING = """
import os
import sys

from nbconvert.nbconvertapp import NbConvertApp
from nbconvert.preprocessors import ExecutePreprocessor
import nbformat

folder = os.environ["TRAINYARD_ARTIFACT_DIR"]
execute = ExecutePreprocessor.preprocess_cell

def execute_and_save(self, cell, resources, *others):
    try:
        return execute(self, cell, resources, *others)
    finally:
        nbformat.write(self.nb, os.path.join(folder, resources["metadata"]["name"] + ".ipynb"))

ExecutePreprocessor.preprocess_cell = execute_and_save
"""
NOTEBOOK = f"""{_SAVING}
NbConvertApp.launch_instance(["--to", "notebook", "--execute", "--output-dir", folder, *sys.argv[1:]])
"""
"""Executes a notebook as `jupyter nbconvert` does, and saves it as an artifact after each cell."""
_RUN_ITSELF = """
import importlib.util
import os
import sys

if importlib.util.find_spec("nbconvert") is None:
    os.execvp(sys.argv[1], sys.argv[1:])
"""
NBCONVERT = f"""{_RUN_ITSELF}{_SAVING}
start = next(at for at, word in enumerate(sys.argv) if os.path.basename(word) in ("nbconvert", "jupyter-nbconvert"))
NbConvertApp.launch_instance(sys.argv[start + 1 :])
"""
"""Is a command of `jupyter nbconvert` with `--execute`, given as arguments, and also saves the notebook as an artifact
after each cell. The command itself runs if another Python has nbconvert."""
_CALL, _WORD = re.compile(r"\bpapermill\s"), re.compile(r"[^\s;&|'\"]+")
_PATHS_OF_NBCONVERT = ("--output", "--output-dir", "--template", "--config", "--post")


def executes_notebook(argv: Sequence[str]) -> bool:
    """Return whether the command is `jupyter nbconvert`, in any of its forms, and executes what it converts."""
    parts = [PurePosixPath(argv[0]).name, *argv[1:]]
    if PYTHON_NAME.fullmatch(parts[0]) and parts[1:2] == ["-m"]:
        parts = parts[2:]
    is_nbconvert = parts[:2] == ["jupyter", "nbconvert"] or parts[:1] in (["nbconvert"], ["jupyter-nbconvert"])
    return is_nbconvert and "--execute" in parts


def executed_notebook(argv: Sequence[str]) -> str | None:
    """Return the first notebook that a command of `jupyter nbconvert` names."""
    named = (word for before, word in pairwise(argv) if before not in _PATHS_OF_NBCONVERT)
    return next((word for word in named if word.endswith(".ipynb") and not word.startswith("-")), None)


def output_notebooks(argv: Sequence[str]) -> list[str]:
    """Return the notebooks that papermill saves after each cell and whose paths are relative, also of several commands
    in a text for a shell."""
    parts = [word for part in argv for word in (_WORD.findall(part) if _CALL.search(part) else [part])]
    starts = [at for at, word in enumerate(parts) if PurePosixPath(word).name == "papermill"]
    outputs = []
    for start, end in pairwise([*starts, len(parts)]):
        notebooks = [word for word in parts[start:end] if word.endswith(".ipynb")]
        outputs += notebooks[1:2]
    relative = (path for path in outputs if not path.startswith("/") and "://" not in path)
    return [path for path in relative if ".." not in PurePosixPath(path).parts]
