"""Where submitit's files of an attempt are. Imports nothing: the submitter, a child of every submission, loads it."""

from pathlib import Path


def submitit_folder(folder: Path) -> Path:
    """Where submitit keeps its files of an attempt."""
    return folder / "submitit"


def call_file(folder: Path) -> Path:
    """The pickled call, written before sbatch is asked."""
    return submitit_folder(folder) / "call.pkl"
