"""The preparation of a node as text of bash, and the reading of its result. Pure functions.

The text writes records that end in NUL to the file descriptor of its first argument: the number of each step before it
runs, facts as `name=value`, then `environment` and every exported variable, then `end`.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.contract.spec.rank_environment import Environment

SITE_SETUP = "TRAINYARD_SITE_SETUP"
MODULES = "environment.modules"
_MODULE_FILES = (
    *("/etc/profile.d/modules.sh", "/etc/profile.d/lmod.sh", "/etc/profile.d/z00_lmod.sh"),
    *("/usr/share/modules/init/bash", "/usr/share/lmod/lmod/init/bash", "/usr/share/Modules/init/bash"),
)
"""Where installations of Environment Modules and Lmod define `module`."""

_HEAD = """\
_trainyard_result=$1
shift
_trainyard_step() { printf '%s\\0' "$1" >&"$_trainyard_result"; }
"""
_FIND_PYTHON = 'printf "python_before=%s\\0" "$(type -P python3)" >&"$_trainyard_result"'
_FIND_CONDA = """\
_trainyard_conda() {
  local name=$1 tool root= folder folders
  tool=${CONDA_EXE:-$(type -P conda || type -P mamba || type -P micromamba)}
  [ ! -x "$tool" ] || root=$(dirname -- "$(dirname -- "$(readlink -f -- "$tool")")")
  if [ "$name" = base ] && [ -x "$root/bin/python" ]; then printf '%s' "$root"; return; fi
  folders="${CONDA_ENVS_DIRS-}:${CONDA_ENVS_PATH-}:$HOME/.conda/envs:${MAMBA_ROOT_PREFIX:+$MAMBA_ROOT_PREFIX/envs}"
  IFS=: read -ra folders <<< "$folders:${root:+$root/envs}"
  for folder in "${folders[@]}"; do
    if [ -n "$folder" ] && [ -x "$folder/$name/bin/python" ]; then printf '%s' "$folder/$name"; return; fi
  done
  [ ! -r "$HOME/.conda/environments.txt" ] || while IFS= read -r folder; do
    if [ "${folder##*/}" = "$name" ] && [ -x "$folder/bin/python" ]; then printf '%s' "$folder"; return; fi
  done < "$HOME/.conda/environments.txt"
  echo "no conda environment of this name is in: ${folders[*]}; name its folder instead" >&2
  return 1
}
"""
_ENTER = """\
unset PYTHONHOME
export PATH="{folder}/bin:$PATH"
printf 'python=%s\\0' "{folder}/bin/python" >&"$_trainyard_result"
"""
_END = """\
printf 'python_after=%s\\0environment\\0' "$(type -P python3)" >&"$_trainyard_result"
unset -f _trainyard_step
/usr/bin/env -0 >&"$_trainyard_result" && printf 'end\\0' >&"$_trainyard_result"
"""


@dataclass(frozen=True)
class Step:
    """A step of the preparation."""

    field: str
    """The field of the spec, or the setting, that requests the step."""
    description: str
    text: str


def steps(environment: Environment, site_setup: str = "", modules_init: str = "") -> list[Step]:
    """Return the steps: the administrator's file, the modules, the user's Python, the lines of `setup`.

    Args:
        site_setup: A file of bash; empty: none.
        modules_init: The file that defines `module`, for a spec with modules.
    """
    made = []
    if site_setup:
        quoted = shlex.quote(site_setup)
        made.append(Step(SITE_SETUP, f"`source {site_setup}`", f"source {quoted} || exit"))
    # A Python that the administrator's file puts on the path is not the user's choice.
    made.append(Step("environment", "the search for python3", _FIND_PYTHON))
    if environment.modules:
        made.append(Step(MODULES, f"`source {modules_init}`", _define_module(modules_init)))
        for name in environment.modules:
            made.append(Step(MODULES, f"`module load {name}`", f"module load {shlex.quote(name)} || exit"))
    if environment.venv:
        quoted = shlex.quote(environment.venv)
        text = f"export VIRTUAL_ENV={quoted}\n" + _ENTER.format(folder="$VIRTUAL_ENV")
        made.append(Step("environment.venv", "the virtual environment", text))
    if environment.conda:
        made.append(Step("environment.conda", f"`{environment.conda}`", _activate_conda(environment.conda)))
    made += [Step("environment.setup", f"`{line}`", f"eval {shlex.quote(line)} || exit") for line in environment.setup]
    return made


def _define_module(init: str) -> str:
    # The file's status cannot be used: it comes from the last test in it.
    return (
        f"source {shlex.quote(init)}\n"
        "type module >/dev/null 2>&1 || { echo 'it does not define the command module' >&2; exit 1; }"
    )


def _activate_conda(name: str) -> str:
    quoted = shlex.quote(name)
    prefix = quoted if name.startswith("/") else f'"$(_trainyard_conda {quoted})"'
    return (
        f"{_FIND_CONDA}_trainyard_prefix={prefix} || exit\n"
        f'export CONDA_PREFIX="$_trainyard_prefix" CONDA_DEFAULT_ENV={quoted} CONDA_SHLVL=1\n'
        f"{_ENTER.format(folder='$CONDA_PREFIX')}"
        'for _trainyard_file in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do\n'
        '  [ ! -f "$_trainyard_file" ] || source "$_trainyard_file"\n'
        "done"
    )


def preparation_text(made: Sequence[Step]) -> str:
    """Return the steps as one text. Nothing that follows a failed step runs."""
    numbered = (f"_trainyard_step {number}\n{step.text}\n" for number, step in enumerate(made))
    return _HEAD + "".join(numbered) + f"_trainyard_step {len(made)}\n" + _END


def modules_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that may define `module`, the most specific first."""
    homes = [Path(environ[name]) / "init" / "bash" for name in ("MODULESHOME", "LMOD_PKG") if environ.get(name)]
    return [*homes, *map(Path, _MODULE_FILES)]


@dataclass(frozen=True)
class Result:
    """The records that the preparation wrote."""

    step: int
    """The number of the last step that began."""
    complete: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def python(self) -> str | None:
        """The interpreter of the virtual or conda environment, or the `python3` that the user's steps put first on the
        path; None if there is neither."""
        if "python" in self.facts:
            return self.facts["python"]
        after = self.facts.get("python_after")
        return after if after and after != self.facts.get("python_before") else None


def read_result(content: bytes) -> Result:
    """Read the preparation's records. A user's line can write there too, so the content may be anything."""
    head, mark, tail = content.partition(b"environment\0")
    step, facts = 0, {}
    for record in os.fsdecode(head).split("\0"):
        name, equals, value = record.partition("=")
        if equals:
            facts[name] = value
        elif record.isdecimal() and len(record) < 6:
            step = int(record)
    complete = bool(mark) and tail.endswith(b"end\0")
    records = os.fsdecode(tail).split("\0")[:-2] if complete else []
    variables = (record.partition("=") for record in records)
    return Result(step, complete, facts, {name: value for name, equals, value in variables if name and equals})
