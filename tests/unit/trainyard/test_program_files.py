"""Programs that the folder lacks are refused before a submission."""

import shlex
from pathlib import Path

import pytest

from trainyard.client.code_folder import CodeFolder
from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_command import parse_command
from trainyard.client.program_files import module_note, named_program, require_uploaded
from trainyard.client.program_spec import read_program


@pytest.fixture
def folder(tmp_path: Path) -> CodeFolder:
    files = (
        "train.py",
        "run.sh",
        "exp/eval.py",
        "pkg/__init__.py",
        "pkg/train.py",
        "pkg/sub/__main__.py",
        "data/a.txt",
    )
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o755)
    return CodeFolder(tmp_path)


def test_folder_with_a_main_file_is_a_program(folder: CodeFolder) -> None:
    program, _ = read_program(["python", "pkg/sub", "x"], folder)
    assert program.argv == ("pkg/sub", "x")
    require_uploaded(program, folder, {"pkg/sub/__main__.py"})
    with pytest.raises(InvalidRequestError, match="use --include pkg/sub"):
        require_uploaded(program, folder, {"train.py"})


def test_script_with_the_line_ends_of_windows_is_refused(folder: CodeFolder) -> None:
    (folder.root / "run.sh").write_bytes(b"#!/bin/bash\r\necho a\r\n")
    with pytest.raises(InvalidRequestError, match=r"use: sed -i 's/\\r\$//' \./run\.sh"):
        read_program(["./run.sh"], folder)
    assert read_program(["bash", "run.sh"], folder)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python trian.py", "there is no file 'trian.py' in .*; did you mean 'train.py'"),
        ("./zzz", r"there is no file '\./zzz' in '[^']*'$"),
        ("./rnu.sh", r"did you mean '\./run.sh'"),
        ("python -u -X dev eval.py", "did you mean 'exp/eval.py'"),
        ("bash absent.sh", "there is no file 'absent.sh'"),
        ("nohup bash rum.sh", "did you mean 'run.sh'"),
        ("uv run trian.py", "did you mean 'train.py'"),
        ("uv run python trian.py", "did you mean 'train.py'"),
        ("low=1 python trian.py", "did you mean 'train.py'"),
        ("torchrun --no-python ./trian.py", r"did you mean '\./train.py'"),
        ("python -m torch.distributed.launch --nproc_per_node 2 trian.py", "did you mean 'train.py'"),
        ("absent.ipynb", "there is no file 'absent.ipynb'"),
        ("python exp", "^command: 'exp' is a folder$"),
        ("python -m pkg.trian", "there is no module 'pkg.trian' in .*; did you mean `-m pkg.train`"),
        ("uv run -m pkg.absent.deeper", "there is no module"),
        ("python -m pkg", "there is no module 'pkg'"),
        ("python -m train.x", "there is no module"),
    ],
)
def test_missing_program_is_refused_with_the_nearest_name(folder: CodeFolder, command: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_program(shlex.split(command), folder)
    assert caught.match(message)


@pytest.mark.parametrize(
    "command",
    [
        *(
            "python train.py",
            "python -m pkg.train",
            "python -m pkg.sub",
            "bash -c absent.sh",
            "./run.sh",
            "bash run.sh",
        ),
        *(
            "/opt/absent",
            "python /opt/absent.py",
            "python -m torch.utils.collect_env",
            "python -m data.loader",
            "absent",
        ),
        *("uv run --directory exp eval.py", "env -C exp python eval.py", "python -c absent.py", "make absent.py"),
        *("bash /opt/absent.sh", "sh -x", "python -X dev train.py"),
    ],
)
def test_any_other_program_is_left_to_the_nodes(folder: CodeFolder, command: str) -> None:
    read_program(shlex.split(command), folder)


def test_a_similar_module_of_the_folder_is_named(folder: CodeFolder) -> None:
    _, note = read_program(["python", "-m", "trian"], folder)
    assert note == "the module 'trian' must be installed on the nodes; did you mean 'train' of this folder?"
    assert module_note(parse_command(["python", "-m", "torchinfo"]), folder) is None


def test_a_program_that_git_ignores_is_refused(folder: CodeFolder) -> None:
    program, _ = read_program(["python", "exp/eval.py"], folder)
    require_uploaded(program, folder, {"exp/eval.py"})
    require_uploaded(parse_command(["make"]), folder, {})
    with pytest.raises(InvalidRequestError, match=r"'exp/eval\.py' is not uploaded, .* use --include exp/"):
        require_uploaded(program, folder, {"train.py"})
    inside = CodeFolder(folder.root, "exp")
    program, _ = read_program(["python", "eval.py"], inside)
    require_uploaded(program, inside, {"exp/eval.py"})


def test_a_script_of_an_environment_is_absolute(folder: CodeFolder) -> None:
    environment = folder.root / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    (environment / "bin" / "trl").touch(mode=0o755)
    program, _ = read_program([".venv/bin/trl", "sft"], folder)
    assert program.argv == (f"{environment}/bin/trl", "sft")
    assert named_program(program) == ("", "")
