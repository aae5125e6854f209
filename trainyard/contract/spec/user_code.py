"""Uploaded code of a user: its path, its size limit, and the fields of a spec that refer to it."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, StringConstraints

from trainyard.contract.base import MAX_DISPLAY_NAME
from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.problems import Problem
from trainyard.contract.validation_messages import DIGEST_PATTERN

MAX_CODE_BYTES = 50 * 2**20
"""Maximum size of an archive, an uncompressed tar, so that unpacking cannot exceed it."""

GIT_REPOSITORY = "git_repository"
"""The label in `metadata` with the name of the repository that has the code."""

CodeDigest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
FOLDER_PROGRAM = "__main__.py"
"""The file that Python runs if its program is a folder."""
MAX_ARGUMENTS = 256
MAX_ARGUMENT = 4096
"""Characters of an argument."""
Argument = Annotated[str, StringConstraints(max_length=MAX_ARGUMENT, pattern=r"^[^\x00]*$")]


def _plain_output_path(path: str) -> str:
    """Return a path without `./` and a trailing slash."""
    parts = PurePosixPath(path).parts
    if path.startswith("/"):
        raise ValueError("must be relative to the working directory; a program finds an absolute path again by itself")
    if not parts:
        raise ValueError("must name a file or a folder in the working directory")
    if ".." in parts:
        raise ValueError("must not lead out of the working directory with `..`")
    if not path.isprintable() or not {"*", "?", "\\"}.isdisjoint(path):
        raise ValueError("must be a path, not a pattern, and without control characters; name the folder")
    return "/".join(parts)


def _plain_folder(path: str) -> str:
    """Return a folder without `./` and a trailing slash; empty: the root."""
    if path.startswith("/") or ".." in PurePosixPath(path).parts or not path.isprintable():
        raise ValueError("must be a folder of the uploaded code, relative to its root, without `..`")
    return "/".join(PurePosixPath(path).parts)


StartFolder = Annotated[str, StringConstraints(max_length=1024), AfterValidator(_plain_folder)]
"""A folder of the uploaded code, relative to its root."""
OutputPath = Annotated[str, StringConstraints(max_length=1024), AfterValidator(_plain_output_path)]
"""A path relative to the working directory of a program, without `./` and a trailing slash."""

_SHELLS = frozenset({"bash", "dash", "ksh", "sh", "zsh"})
_SHELL_TEXT = re.compile(r"-[a-zA-Z]*c")
_SHELL_WORD = re.compile(r"[^\s'\"(){}]+")
_ASSIGNMENT = re.compile(r"\w+=")
_PREPARATIONS = frozenset({".", "cd", "echo", "export", "mkdir", "module", "set", "source", "trap", "ulimit", "umask"})
"""Commands of a shell that stand before the program."""
_SOURCES = frozenset({".py", ".sh", ".bash", ".ipynb", ".lua", ".jl", ".r", ".R"})

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def code_archive(runs: Path, digest: str) -> Path:
    """Return the path of an archive: below the runs directory, which all nodes share."""
    return runs / "code" / f"{digest.removeprefix('sha256:')}.tar"


def module_paths(module: str) -> tuple[str, str]:
    """Return the two possible files of a module, relative to a folder of the search path."""
    path = module.replace(".", "/")
    return f"{path}.py", f"{path}/__init__.py"


def program_name(argv: Sequence[str]) -> str:
    """Return a name for a job whose spec has none: the module or file that the program is or names first, else the
    command; in a text for a shell, the file, module or command there."""
    argv = _arguments_of_text(argv) or argv
    first, *others = argv
    if first == "-m" and others:
        return others[0][:MAX_DISPLAY_NAME]
    paths = [PurePosixPath(one) for one in argv if not one.startswith("-")] or [PurePosixPath(first)]
    path = next((path for path in paths if path.suffix in _SOURCES), paths[0])
    return (path.stem or path.name)[:MAX_DISPLAY_NAME]


def _arguments_of_text(argv: Sequence[str]) -> list[str]:
    """Return the arguments of the first command in a shell's `-c TEXT` that names a program; empty without one."""
    if PurePosixPath(argv[0]).name not in _SHELLS:
        return []
    text = next((text for option, text in pairwise(argv[1:]) if _SHELL_TEXT.fullmatch(option)), "")
    for command in re.split(r"&&|[;&|\n]+", text):
        arguments = [word for word in _SHELL_WORD.findall(command) if not _ASSIGNMENT.match(word)]
        if arguments[:1] in (["exec"], ["time"]):
            del arguments[0]
        if not arguments or arguments[0] in _PREPARATIONS:
            continue
        if "-m" in arguments[:-1] and not any(PurePosixPath(word).suffix in _SOURCES for word in arguments):
            return arguments[arguments.index("-m") :]
        return arguments
    return []


def expected_code_files(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the files of which the code folder of a spec must contain at least one; empty if the spec needs no folder.

    Args:
        document: A spec that is not validated yet.
    """
    task, target, argv = (document.get(field) for field in ("task", "target", "argv"))
    kind = task_kind(task)
    if kind.has_own_code and isinstance(target, str):
        return module_paths(target.partition(":")[0])
    arguments = [str(word) for word in argv] if isinstance(argv, list | tuple) else []
    if not kind.runs_program or not arguments or Path(arguments[0]).is_absolute():
        return ()
    folder = start_folder(document)
    if is_command(document):
        return (path_in_code(arguments[0], folder),) if "/" in arguments[0] else ()
    if arguments[0] == "-m":
        path = path_in_code(module_paths(arguments[1])[0], folder) if len(arguments) > 1 else ""
        return (path, f"{path.removesuffix('.py')}/__main__.py") if path else ()
    return (path_in_code(arguments[0], folder),)


def is_command(document: Mapping[str, Any]) -> bool:
    """Return whether the program of a spec that is not validated yet is any command."""
    launch = document.get("launch")
    return isinstance(launch, Mapping) and launch.get("mode") == "exec"


def start_folder(document: Mapping[str, Any]) -> str:
    """Return the folder in which the program of a spec starts, relative to the root of its code; empty: the root.

    Args:
        document: A spec that may not be validated yet.
    """
    launch = document.get("launch")
    folder = launch.get("folder") if isinstance(launch, Mapping) else None
    return folder if isinstance(folder, str) else ""


def path_in_code(path: str, folder: str) -> str:
    """Return a path relative to the root of the code; it begins with `..` if it leads out of the code.

    Args:
        path: The path, relative to the folder in which the program starts.
        folder: That folder, relative to the root.
    """
    return posixpath.normpath(posixpath.join(folder, path))


def runs_uploaded_file(argv: Sequence[str], *, runs_command: bool) -> bool:
    """Return whether the program is a file of the uploaded folder.

    Args:
        runs_command: Whether `argv` is any command, whose first word without a slash is a program of the search path.
    """
    return not argv[0].startswith("/") and ("/" in argv[0] if runs_command else argv[0] != "-m")


def code_problems(
    task: str, target: str | None, argv: Sequence[str] | None, code: str | None, *, runs_command: bool, folder: str
) -> list[Problem]:
    """Return the problems of the fields about user code.

    Args:
        folder: The folder in which the program starts.
    """
    problems, kind = [], task_kind(task)
    if code is not None and kind.code_field is None:
        problems.append(Problem(param="code", message="is for tasks `custom` and `script` only"))
    if kind.has_own_code and target is not None and not _TARGET.fullmatch(target):
        problems.append(Problem(param="target", message="must be `module:function`, like `my_task:build`"))
    if kind.runs_program and argv is not None:
        problems += _command_problems(argv, folder) if runs_command else _argv_problems(argv, folder)
    return problems


def _command_problems(argv: Sequence[str], folder: str) -> list[Problem]:
    if not argv or not argv[0]:
        message = "must begin with a program"
    elif argv[0].startswith("-") or _leads_out(argv[0], folder):
        message = f"`{argv[0]}` is neither a file inside the uploaded folder, nor an absolute path, nor a program"
    else:
        return []
    return [Problem(param="argv", message=message)]


def _argv_problems(argv: Sequence[str], folder: str) -> list[Problem]:
    if not argv or not argv[0]:
        message = "must begin with a file of the uploaded folder, an absolute path, or `-m` and a module"
    elif argv[0] == "-m" and len(argv) < 2:
        message = "`-m` needs a module after it"
    elif argv[0] != "-m" and (argv[0].startswith("-") or _leads_out(argv[0], folder)):
        message = f"`{argv[0]}` is neither a file inside the uploaded folder, nor an absolute path, nor `-m`"
    else:
        return []
    return [Problem(param="argv", message=message)]


def _leads_out(path: str, folder: str) -> bool:
    return path_in_code(path, folder).split("/")[0] == ".."
