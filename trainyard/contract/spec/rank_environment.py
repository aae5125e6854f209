"""The section `environment` of a spec: the Python, the modules and the variables of the ranks."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from trainyard.contract.base import MAX_SPEC_SECRETS, ShortText, Strict, VariableName
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.containers import Container
from trainyard.contract.validation_messages import CONDA_PATTERN, MODULE_PATTERN, NODE_PATH_PATTERN, SHELL_LINE_PATTERN

MAX_MODULES = 32
MAX_SETUP_LINES = 64

NodePath = Annotated[str, StringConstraints(max_length=1024, pattern=NODE_PATH_PATTERN)]
"""An absolute path on the nodes."""
CondaName = Annotated[str, StringConstraints(max_length=1024, pattern=CONDA_PATTERN)]
ModuleName = Annotated[str, StringConstraints(max_length=255, pattern=MODULE_PATTERN)]
ShellLine = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=SHELL_LINE_PATTERN)]

_PYTHONS = ("python", "venv", "conda", "container")
"""Fields that define the Python of the ranks; they exclude each other."""
CODE_FIELDS = (*_PYTHONS, "modules", "setup")
"""Fields that select code to run on the nodes; they require the code role."""


class Environment(Strict):
    """The environment of the ranks; see `docs/environments.md`."""

    python: NodePath | None = None
    """Absolute path of the Python interpreter. Absent: the service's interpreter, or an interpreter that `modules` or
    `setup` put first on the path. Requires the code role, as the next five fields do."""
    venv: NodePath | None = None
    """Absolute path of the folder of a virtual environment, whose Python the ranks use."""
    conda: CondaName | None = None
    """Name or absolute path of a conda environment, whose Python the ranks use."""
    container: Container | None = None
    """A container in which the ranks run, with the Python of its image."""
    modules: Annotated[tuple[ModuleName, ...], Field(max_length=MAX_MODULES)] = ()
    """Environment modules to load, in this order, as `module load` does."""
    setup: Annotated[tuple[ShellLine, ...], Field(max_length=MAX_SETUP_LINES)] = ()
    """Lines of bash to run once on each node before the ranks start, after the modules are loaded. The ranks get the
    variables that they export."""
    variables: dict[VariableName, ShortText] = Field(default_factory=dict, max_length=64)
    """Environment variables to set. Names require the code role, except for `APP_*` and the names in
    `docs/security.md`."""
    secrets: Annotated[tuple[VariableName, ...], Field(max_length=MAX_SPEC_SECRETS)] = ()
    """Names of your secrets (`trainyard secrets set NAME`) to set as environment variables. Names require the code
    role, except for names that end in `_TOKEN`, `_SECRET`, `_PASSWORD`, `_API_KEY`, `_ACCESS_KEY` or `_ACCESS_KEY_ID`,
    `APP_*` and the names in `docs/security.md`."""

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        for name in self.secrets:
            if name in self.variables or self.secrets.count(name) > 1:
                raise ValueError(f"`{name}` is given twice; list it once, in `variables` or in `secrets`")
        return self

    @model_validator(mode="after")
    def _one_python(self) -> Self:
        given = [name for name in _PYTHONS if getattr(self, name) is not None]
        if len(given) > 1:
            message = f"cannot be combined with `environment.{given[0]}`; each defines the Python of the ranks"
            raise SpecError([Problem(param=f"environment.{given[1]}", message=message)])
        return self

    @property
    def code_fields(self) -> tuple[str, ...]:
        """The paths of the fields that are set and select code to run."""
        return tuple(f"environment.{name}" for name in CODE_FIELDS if getattr(self, name))
