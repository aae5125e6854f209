"""Finds the program in a command line that begins with a wrapper, such as `uv run` or `nohup`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class _Wrapper:
    """How a wrapper is called."""

    arguments: int = 0
    """Number of arguments before the program that are not options: a subcommand, a duration."""
    valued: frozenset[str] = frozenset()
    """The options whose value is the next argument."""
    all_valued: bool = False
    """Whether every option without `=` has such a value."""


_UV_OPTIONS = """
    --allow-insecure-host --cache-dir --color --config-file --config-setting --config-settings-package
    --default-index --directory --env-file --exclude-newer --exclude-newer-package --extra --extra-index-url
    --find-links --fork-strategy --group --index --index-strategy --index-url --keyring-provider --link-mode
    --no-binary-package --no-build-isolation-package --no-build-package --no-editable-package --no-extra --no-group
    --no-sources-package --only-group --package --prerelease --prerelease-package --project --python
    --python-platform --refresh-package --reinstall-package --resolution --upgrade-group --upgrade-package --with
    --with-editable --with-requirements -C -P -f -i -p -w
"""
"""As `uv run --help` of 0.13 lists them."""
_CONDA = _Wrapper(1, frozenset({"-n", "--name", "-p", "--prefix", "--cwd", "-r", "--root-prefix"}))
_WRAPPERS: Mapping[str, _Wrapper] = {
    "uv": _Wrapper(1, frozenset(_UV_OPTIONS.split())),
    "poetry": _Wrapper(1, frozenset({"-C", "--directory", "-P", "--project"})),
    "pdm": _Wrapper(1, frozenset({"-p", "--project"})),
    "hatch": _Wrapper(1, frozenset({"-e", "--env", "-p", "--project"})),
    "pixi": _Wrapper(1, frozenset({"-e", "--environment", "-m", "--manifest-path"})),
    **dict.fromkeys(("pipenv", "rye"), _Wrapper(1)),
    **dict.fromkeys(("conda", "mamba", "micromamba"), _CONDA),
    "env": _Wrapper(0, frozenset({"-u", "--unset", "-C", "--chdir", "-S", "--split-string"})),
    "nice": _Wrapper(0, frozenset({"-n", "--adjustment"})),
    "ionice": _Wrapper(0, frozenset({"-c", "--class", "-n", "--classdata"})),
    "nohup": _Wrapper(),
    "stdbuf": _Wrapper(0, frozenset({"-i", "--input", "-o", "--output", "-e", "--error"})),
    "timeout": _Wrapper(1, frozenset({"-k", "--kill-after", "-s", "--signal"})),
    "taskset": _Wrapper(1),
    "numactl": _Wrapper(
        0,
        frozenset(
            {
                *("-C", "--physcpubind", "-N", "--cpunodebind", "-i", "--interleave", "-m", "--membind"),
                *("-p", "--preferred", "-P", "--preferred-many"),
            }
        ),
    ),
    "xvfb-run": _Wrapper(0, frozenset({"-e", "-f", "-n", "-p", "-s", "-w", "--server-args", "--server-num"})),
    "nsys": _Wrapper(1, all_valued=True),
}


def program_position(command: Sequence[str]) -> int:
    """Return the position of the program that a wrapper starts: 0 without a wrapper, and the command's length if
    nothing follows.

    `uv run -m pkg.train` and `uv run --script file` begin at the option.
    """
    name = PurePosixPath(command[0]).name
    wrapper = _WRAPPERS.get(name)
    if wrapper is None:
        return 0
    arguments, position = wrapper.arguments, 1
    while position < len(command):
        part = command[position]
        if name == "uv" and part in ("-m", "--module", "-s", "--script"):
            return position
        if part == "--":
            arguments = 0
        elif part.startswith("-"):
            has_value = wrapper.all_valued or part in wrapper.valued
            position += has_value and "=" not in part
        elif name == "env" and "=" in part:
            pass
        elif arguments:
            arguments -= 1
        else:
            return position
        position += 1
    return len(command)
