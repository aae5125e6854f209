"""Refuses command lines of a shell or a scheduler, with the line to use instead, made of the user's own."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_python import PYTHON_NAME
from trainyard.contract.spec.user_code import MAX_ARGUMENT, MAX_ARGUMENTS

_SHELL_TEXT = re.compile(r"[\s;|&<>$`]")
_OPERATOR = re.compile(
    r"\d*(>>?|<<?<?|<>)(&\d*-?)?|&>>?|\|\|?|\|&|&&?|;;?"
    r"|(\d*|&)(>>?\|?|<)[A-Za-z_./~][\w./~{}+:@%,-]*"  # a redirection with its file, not `<s>` or `>=1.0`
)
SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh", "fish"})
_PARTS_OF_SHELLS = frozenset({"cd", "source", ".", "export", "alias", "time", "set", "ulimit", "trap", "eval", "exec"})
_REASONS = {
    "srun": "Trainyard starts the processes",
    "sbatch": "Trainyard submits the job itself",
    "salloc": "Trainyard allocates the GPUs itself",
    "sudo": "a job runs with the rights of your account",
    "ssh": "Slurm chooses the nodes",
}
_FLAGS = """
    -l --label -u --unbuffered -v --verbose -s --oversubscribe -O --overcommit -X --disable-status -K
    --kill-on-bad-exit -Q --quiet -k --no-kill -E --preserve-env -H --hold -I --immediate --exclusive --pty --overlap
    --parsable -W --wait --requeue --no-requeue --contiguous --spread-job --test-only --no-shell --multi-prog
"""
_OF_SUDO = "-u -g -h -p -C -r -t -T -U -D -R --user --group --host --prompt --chdir"
_OF_SSH = "-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w"
_FLAGS_OF_SLURM = frozenset(_FLAGS.split())
_VALUED = {"sudo": frozenset(_OF_SUDO.split()), "ssh": frozenset(_OF_SSH.split())}
"""Options whose value is the next argument. Of Slurm's programs, all options except for the flags have one."""
_LONG = {"n": "ntasks", "N": "nodes", "G": "gpus", "p": "partition", "t": "time"}
_NOT_UTF8 = re.compile("[\ud800-\udfff]")
_SHOWN = 40
_NUMBER = re.compile(r"[1-9]\d{0,5}")


def refuse_too_large(parts: Sequence[str]) -> None:
    """Refuse a command that no spec can have: with too many words, a word that is too long, or one that is not UTF-8.

    Raises:
        InvalidRequestError: with the way to run it.
    """
    if len(parts) > MAX_ARGUMENTS:
        problem = f"the command has {len(parts):,} words, and at most {MAX_ARGUMENTS} are possible"
    elif long := next((part for part in parts if len(part) > MAX_ARGUMENT), None):
        problem = f"the word '{long[:_SHOWN]}...' has {len(long):,} characters, and at most {MAX_ARGUMENT} are possible"
    elif odd := next((part for part in parts if _NOT_UTF8.search(part)), None):
        problem = f"the word {odd[:_SHOWN]!a} is not UTF-8"
    else:
        return
    advice = "write the command to a file, such as run.sh, and use: trainyard run -- bash run.sh"
    raise InvalidRequestError(f"{problem}; {advice}", param="command")


def refuse_shell_text(parts: Sequence[str]) -> None:
    """Refuse a line of a shell in one word, and operators of a shell among the words.

    Raises:
        InvalidRequestError: with the line to use.
    """
    if len(parts) == 1 and _SHELL_TEXT.search(parts[0]):
        line = parts[0] if re.fullmatch(r"[\w\s./=:,@+-]+", parts[0]) else f"bash -c {shlex.quote(parts[0])}"
        raise InvalidRequestError(f"this is a line of a shell; use: trainyard run -- {line}")
    operator = next((part for part in parts if _OPERATOR.fullmatch(part)), None)
    if operator is None or _has_own_operators(parts, operator):
        return
    line = " ".join(part if _OPERATOR.fullmatch(part) else shlex.quote(part) for part in parts)
    is_python = PYTHON_NAME.fullmatch(PurePosixPath(parts[0]).name) or parts[0].endswith(".py")
    each = "; with several GPUs, --per rank starts it for each" if is_python else ""
    raise InvalidRequestError(
        f"{operator!r} is an operator of a shell, which a command does not have; use: trainyard run -- bash -c "
        f"{shlex.quote(line)}{each}"
    )


def _has_own_operators(parts: Sequence[str], operator: str) -> bool:
    """Return whether the program itself takes such words: a shell after `-c`, or `find`."""
    names = [PurePosixPath(part).name for part in parts]
    return ("-c" in parts and not SHELLS.isdisjoint(names)) or (operator == ";" and "find" in names)


def refuse_other_start(parts: Sequence[str]) -> None:
    """Refuse a command that would start elsewhere or as someone else, and a part of a shell's language.

    Raises:
        InvalidRequestError: with the line to use.
    """
    name = PurePosixPath(parts[0]).name
    if name in _PARTS_OF_SHELLS:
        line = shlex.quote(shlex.join(parts))
        raise InvalidRequestError(f"{name!r} is a part of a shell; use: trainyard run -- bash -c {line}")
    if name not in _REASONS:
        return
    options, inner = _split_options(name, parts[1:])
    if name == "ssh":
        inner = inner[1:]
    line = _inner_line(name, inner, options)
    advice = f"; run `{line}`{_instead(name, options)} instead of `{shlex.join(parts)}`" if line else ""
    raise InvalidRequestError(f"{name!r} cannot be run in a job: {_REASONS[name]}{advice}")


def _inner_line(name: str, inner: Sequence[str], options: dict[str, str]) -> str:
    """Return the command that the program would start."""
    if name == "sbatch":
        return f"bash -c {shlex.quote(options['wrap'])}" if "wrap" in options else shlex.join(["bash", *inner])
    if len(inner) == 1 and _SHELL_TEXT.search(inner[0]):
        return f"bash -c {shlex.quote(inner[0])}"
    return shlex.join(inner)


def _split_options(name: str, arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options of a program by their long names, and the arguments after them."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and (rest[0].startswith("-") or (name == "sudo" and "=" in rest[0])):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if not option.startswith("--") and len(option) > 2 and name not in _VALUED:
            option, equals, value = option[:2], "=", option[2:] + equals + value
        has_value = option in _VALUED[name] if name in _VALUED else option not in _FLAGS_OF_SLURM
        if has_value and not equals and rest:
            value = rest.pop(0)
        plain = option.lstrip("-")
        options[_LONG.get(plain, plain)] = value
    return options, rest


def _instead(name: str, options: dict[str, str]) -> str:
    """Return the options of `trainyard run` that state the same as those of a program of Slurm."""
    if name in _VALUED:
        return ""
    nodes = _number(options, "nodes") or 1
    per_node = _number(options, "ntasks-per-node") or _number(options, "gpus-per-node")
    gpus = _number(options, "gpus") or _number(options, "ntasks") or (per_node and per_node * nodes)
    given = {"--gpus": gpus, "--nodes": nodes if nodes > 1 else None, "--partition": options.get("partition")}
    time = options.get("time", "")
    given["--time"] = f"{time}m" if _NUMBER.fullmatch(time) else time
    shown = " ".join(f"{option} {value}" for option, value in given.items() if value)
    return f" with {shown}" if shown else " with --gpus and --nodes"


def _number(options: dict[str, str], name: str) -> int | None:
    return int(options[name]) if _NUMBER.fullmatch(options.get(name, "")) else None
