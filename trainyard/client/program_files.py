"""The files of the uploaded folder that a command names as its program."""

import os
import shlex
from collections.abc import Iterator, Sequence, Set
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

from trainyard.client.code_folder import CodeFolder
from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_command import Program, started_file
from trainyard.client.program_python import PYTHON_NAME
from trainyard.client.program_refusals import SHELLS
from trainyard.client.program_wrappers import program_position
from trainyard.contract.spec.user_code import FOLDER_PROGRAM, module_paths

_CHANGING_FOLDER = ("-C", "--chdir", "--directory", "--cwd")
"""Options of wrappers after which paths are relative to another folder."""
_VALUED_BY_PYTHON = frozenset({"-X", "-W", "--check-hash-based-pycs"})
_MAX_COMPARED = 2000
_MAX_FIRST_LINE = 256
"""Bytes that Linux reads of the line that names an interpreter."""


def require_files(program: Program, folder: CodeFolder) -> None:
    """Refuse a program that is a file of the working folder, or a module of a package there, which does not exist.

    Absolute paths and programs of the search path are not judged: the nodes have them.

    Raises:
        InvalidRequestError: with the nearest name that exists.
    """
    kind, name = named_program(program)
    working, shown = folder.working, os.path.abspath(folder.working)
    if kind == "file" and not any((working / one).is_file() for one in (name, f"{name}/{FOLDER_PROGRAM}")):
        near = _nearest(name, list(_files(working)))
        message = f"{name!r} is a folder" if (working / name).is_dir() else f"there is no file {name!r} in {shown!r}"
        near = near and f"./{near}" if name.startswith("./") else near
        raise InvalidRequestError(message + (f"; did you mean {near!r}?" if near else ""), param="command")
    if kind == "module" and _lacks_module(working, name):
        near = _nearest(name, [_module_of(file) for file in _files(working) if file.endswith(".py")])
        meant = f"; did you mean `-m {near}`?" if near else ""
        raise InvalidRequestError(f"there is no module {name!r} in {shown!r}{meant}", param="command")


def require_executable(working: Path, name: str) -> None:
    """Refuse a file of the working folder that the nodes could not execute as a command.

    Raises:
        InvalidRequestError: with the command to use.
    """
    if not os.access(working / name, os.X_OK):
        message = f"{name!r} is not executable; use chmod +x, or name the program that reads it, such as bash"
        raise InvalidRequestError(message, param="command")
    with (working / name).open("rb") as file:
        line = file.readline(_MAX_FIRST_LINE)
    if line.startswith(b"#!") and line.endswith(b"\r\n"):
        fix = f"sed -i 's/\\r$//' {shlex.quote(name)}"
        message = f"{name!r} has the line ends of Windows, with which its first line names no interpreter; use: {fix}"
        raise InvalidRequestError(message, param="command")


def require_uploaded(program: Program, folder: CodeFolder, uploaded: Set[str]) -> None:
    """Refuse a program that exists in the working folder and is not uploaded.

    Raises:
        InvalidRequestError: with the option that uploads it.
    """
    kind, name = named_program(program)
    if kind == "file" and uploaded.isdisjoint((folder.name_of(name), folder.name_of(f"{name}/{FOLDER_PROGRAM}"))):
        message = f"{name!r} is not uploaded, since git or .trainyardignore excludes it; use --include {name}"
        raise InvalidRequestError(message, param="command")


def module_note(program: Program, folder: CodeFolder) -> str | None:
    """Return a note that a module must be installed on the nodes, if its name is similar to one of the folder."""
    kind, name = named_program(program)
    if kind != "module" or (folder.working / module_paths(name)[0]).exists() or "." in name:
        return None
    near = _nearest(name, [_module_of(file) for file in os.listdir(folder.working) if file.endswith(".py")])
    if near is None or near == name:
        return None
    return f"the module {name!r} must be installed on the nodes; did you mean {near!r} of this folder?"


def named_program(program: Program) -> tuple[str, str]:
    """Return `file` and a relative path, or `module` and a name; two empty texts for any other program."""
    argv = program.argv
    if program.is_command and (generated := started_file(argv)):
        return _relative("file", generated)
    if program.is_command:
        return _of_command(argv)
    return ("module", argv[1]) if argv[0] == "-m" else _relative("file", argv[0])


def _of_command(argv: Sequence[str]) -> tuple[str, str]:
    while position := program_position(argv):
        wrapper, argv = argv[:position], argv[position:]
        if not argv or any(part.split("=")[0] in _CHANGING_FOLDER for part in wrapper):
            return "", ""
    first, *rest = argv
    if PYTHON_NAME.fullmatch(PurePosixPath(first).name):
        return _of_python(rest)
    if first in SHELLS:
        return ("", "") if not rest or rest[0].startswith("-") else _relative("file", rest[0])
    if first == "-m" and rest:
        return "module", rest[0]
    return _relative("file", first) if "/" in first or first.endswith(".py") else ("", "")


def _of_python(arguments: Sequence[str]) -> tuple[str, str]:
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-m" and rest:
            return "module", rest[0]
        if option in ("-", "-c", "-m"):
            return "", ""
        if option in _VALUED_BY_PYTHON and rest:
            rest.pop(0)
    return _relative("file", rest[0]) if rest else ("", "")


def _relative(kind: str, path: str) -> tuple[str, str]:
    return ("", "") if path.startswith(("/", "~", "-")) else (kind, path)


def _lacks_module(working: Path, module: str) -> bool:
    """Return whether a regular package or module of the folder has the first part of the name, but not the module."""
    top, _, inner = module.partition(".")
    package = working / top / "__init__.py"
    if not package.is_file():
        return bool(inner) and (working / f"{top}.py").is_file()
    path = working / module.replace(".", "/")
    endings = [*path.parent.glob(f"{path.name}.*"), path / FOLDER_PROGRAM]
    return not any(file.is_file() for file in endings)


def _module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__main__").replace("/", ".")


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """Return the most similar of the names: the same file in another folder, or a similar path."""
    plain = os.path.normpath(name)
    same = [one for one in names if PurePosixPath(one).name == PurePosixPath(plain).name]
    near = same or get_close_matches(plain, names, n=1, cutoff=0.6)
    return min(near, key=len) if near else None


def _files(folder: Path) -> Iterator[str]:
    """Yield the first files below a folder, without hidden folders."""
    number = 0
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith((".", "__pycache__")))
        for name in sorted(names):
            number += 1
            if number > _MAX_COMPARED:
                return
            yield os.path.relpath(os.path.join(at, name), folder)
