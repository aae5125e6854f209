"""Notebooks as programs."""

from collections.abc import Sequence
from pathlib import PurePosixPath

NOTEBOOK = """
import os
import sys

from nbconvert.nbconvertapp import NbConvertApp
from nbconvert.preprocessors import ExecutePreprocessor
import nbformat

folder, notebook = os.environ["TRAINYARD_ARTIFACT_DIR"], sys.argv[1]
executed = os.path.join(folder, os.path.basename(notebook))
execute = ExecutePreprocessor.preprocess_cell

def execute_and_save(self, *arguments, **options):
    try:
        return execute(self, *arguments, **options)
    finally:
        nbformat.write(self.nb, executed)

ExecutePreprocessor.preprocess_cell = execute_and_save
NbConvertApp.launch_instance(["--to", "notebook", "--execute", "--output-dir", folder, *sys.argv[1:]])
"""
"""Executes a notebook as `jupyter nbconvert` does, and saves it as an artifact after each cell."""


def output_notebook(argv: Sequence[str]) -> str | None:
    """Return the notebook that papermill saves after each cell, if the command has papermill and a relative path."""
    names = [PurePosixPath(word).name for word in argv]
    if "papermill" not in names:
        return None
    notebooks = [word for word in argv[names.index("papermill") :] if word.endswith(".ipynb")]
    output = next(iter(notebooks[1:2]), "/")
    return None if output.startswith("/") or "://" in output or ".." in PurePosixPath(output).parts else output
