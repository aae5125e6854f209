"""Which Python runs a program."""

from pathlib import Path

import pytest

from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_python import ProgramPython, choose_python

TRAIN = ("train.py",)


def make_environment(folder: Path, *, conda: bool = False) -> Path:
    """Make a folder that looks like an environment, whose interpreter is a link as in a real one."""
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "torchrun"):
        (folder / "bin" / name).symlink_to("/bin/sh")
    if conda:
        (folder / "conda-meta").mkdir()
    else:
        (folder / "pyvenv.cfg").write_text("")
    return folder


@pytest.fixture
def venv(tmp_path) -> Path:
    return make_environment(tmp_path / "venv")


@pytest.fixture
def conda(tmp_path) -> Path:
    return make_environment(tmp_path / "conda", conda=True)


def choose(*command: str, own: Path = Path("/own"), **changes) -> ProgramPython:
    options = {"venv": None, "container": None, "active": True, "variables": {}} | changes
    return choose_python(command, own_prefix=own, **options)


def fields(*command: str, **changes) -> dict:
    return dict(choose(*command, **changes).fields)


@pytest.mark.parametrize("program", ["python", "torchrun"])
def test_the_path_of_an_interpreter_or_launcher_names_its_environment(venv, conda, program) -> None:
    assert fields(f"{venv}/bin/{program}", *TRAIN) == {"venv": str(venv)}
    assert fields(f"{conda}/bin/{program}", *TRAIN) == {"conda": str(conda)}


def test_the_environment_of_a_wrapper_is_not_the_programs(venv, conda) -> None:
    (venv / "bin" / "uv").touch()
    assert fields(f"{venv}/bin/uv", "run", "python", *TRAIN) == {}
    assert fields(f"{venv}/bin/uv", "run", f"{conda}/bin/python", *TRAIN) == {"conda": str(conda)}
    assert fields("timeout", "20", f"{venv}/bin/torchrun", *TRAIN) == {"venv": str(venv)}


def test_a_relative_path_is_made_absolute_and_links_are_not_followed(venv, monkeypatch) -> None:
    monkeypatch.chdir(venv.parent)
    assert fields("venv/bin/python", *TRAIN) == {"venv": str(venv)}


def test_an_interpreter_of_no_environment_is_used_as_it_is(tmp_path) -> None:
    (tmp_path / "python3.12").symlink_to("/bin/sh")
    assert fields(f"{tmp_path}/python3.12", *TRAIN) == {"python": f"{tmp_path}/python3.12"}
    assert fields("/only/on/the/nodes/python", *TRAIN) == {"python": "/only/on/the/nodes/python"}


@pytest.mark.parametrize("word", ["train.py", "./train.py", "sub/train.py", "python", "torchrun"])
def test_other_commands_name_no_python(word) -> None:
    assert choose(word) == ProgramPython()


def test_an_interpreter_that_cannot_be_used_is_refused(tmp_path) -> None:
    (tmp_path / "python").write_text("")
    with pytest.raises(InvalidRequestError, match="no program that you may execute"):
        choose(f"{tmp_path}/python", *TRAIN)
    with pytest.raises(InvalidRequestError, match="there is no interpreter"):
        choose("absent/bin/python", *TRAIN)
    (tmp_path / "deepspeed").write_text("")
    (tmp_path / "python").unlink()
    with pytest.raises(InvalidRequestError, match="no `python` beside"):
        choose(f"{tmp_path}/deepspeed", *TRAIN)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequestError, match="has no bin/python"):
        choose("python", *TRAIN, venv=tmp_path / "empty")


def test_an_active_environment_is_used_and_stated(venv, conda) -> None:
    chosen = choose("python", *TRAIN, variables={"VIRTUAL_ENV": str(venv), "CONDA_PREFIX": str(conda)})
    assert chosen.fields == {"venv": str(venv)}
    assert chosen.note == (
        f"the program runs in the active environment {venv}, which the nodes must have too; "
        "--no-venv: in the Python of the service"
    )
    assert fields("torchrun", *TRAIN, variables={"CONDA_PREFIX": str(conda)}) == {"conda": str(conda)}


def test_an_active_environment_is_ignored_where_it_was_not_chosen(venv, conda, tmp_path) -> None:
    active = {"VIRTUAL_ENV": str(venv)}
    assert choose("python", *TRAIN, variables=active, active=False) == ProgramPython()
    assert choose("python", *TRAIN, variables=active, own=venv) == ProgramPython()
    assert choose("python", *TRAIN, variables={"VIRTUAL_ENV": str(tmp_path / "deleted")}) == ProgramPython()
    base = {"CONDA_PREFIX": str(conda), "CONDA_DEFAULT_ENV": "base"}
    assert choose("python", *TRAIN, variables=base) == ProgramPython()


def test_options_exclude_another_python(venv, conda) -> None:
    active = {"VIRTUAL_ENV": str(venv)}
    assert choose("python", *TRAIN, venv=conda, variables=active) == ProgramPython({"venv": str(conda)})
    assert fields("python", *TRAIN, container="a.sif", variables=active) == {"container": {"image": "a.sif"}}
    assert fields(f"{venv}/bin/python", *TRAIN, venv=venv) == {"venv": str(venv)}
    with pytest.raises(InvalidRequestError, match="names another Python") as refused:
        choose(f"{venv}/bin/python", *TRAIN, container="a.sif")
    assert refused.value.param == "container"
