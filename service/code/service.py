"""Checks before code of a user runs: the user's permission, and that an uploaded archive exists."""

from collections.abc import Collection

from service.auth.principals import Principal
from service.code.store import find_archive
from service.core.errors import InvalidSpecError, PermissionDeniedError
from service.core.settings import Settings
from trainyard.contract.kinds.tasks import CODE_TASKS
from trainyard.contract.problems import Problem
from trainyard.contract.spec.environment import describe_restricted, restricted_variables
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.spec.user_code import runs_uploaded_file


def may_run_code(principal: Principal, roles: Collection[str]) -> bool:
    """Return whether the role or the token allows the user to run code of their own."""
    return principal.role in roles or principal.may_run_code


def require_code_role(principal: Principal, roles: Collection[str], what: str, param: str | None = None) -> None:
    """Raises PermissionDeniedError: neither the role nor the token allows the user to run code of their own."""
    if not may_run_code(principal, roles):
        raise PermissionDeniedError(
            f"{what} requires a token with the role "
            f"{' or '.join(sorted(roles))}; yours has the role {principal.role} (an administrator can set "
            "TRAINYARD_CODE_ROLES, or create a token with `trainyard tokens create NAME --may-run-code`)",
            code="code_role_required",
            param=param,
        )


def check_code(principal: Principal, spec: TrainingSpec, settings: Settings) -> None:
    """Check that the user may run the code of a spec, by task, environment or variable, and that the service has it.

    Raises:
        PermissionDeniedError: neither the role nor the token allows it.
        InvalidSpecError: the code was not uploaded, or the program needs code and the spec names none.
    """
    check_code_permission(principal, spec, settings)
    if spec.task not in CODE_TASKS:
        return
    if spec.code is None and spec.argv is not None and runs_uploaded_file(spec.argv, runs_command=spec.runs_command):
        message = f"is required: `{spec.argv[0]}` is a file of an uploaded folder (trainyard submit --code FOLDER)"
        raise InvalidSpecError([Problem(param="code", message=message)])
    if spec.code is not None and find_archive(settings.runs, spec.code) is None:
        message = "has a digest of which no code was uploaded; upload it first (trainyard submit --code FOLDER)"
        raise InvalidSpecError([Problem(param="code", message=message)])


def check_code_permission(principal: Principal, spec: TrainingSpec, settings: Settings) -> None:
    """Check that the user may run the code of a spec, by task, environment or variable.

    Raises:
        PermissionDeniedError: neither the role nor the token allows it.
    """
    fields = restricted_variables(spec, settings.allowed_variables)
    if fields and not may_run_code(principal, settings.code_roles):
        raise PermissionDeniedError(
            describe_restricted(fields, settings.allowed_variables), code="code_role_required", param=fields[0]
        )
    for field in spec.environment.code_fields:
        require_code_role(principal, settings.code_roles, f"what `{field}` selects", param=field)
    if spec.task in CODE_TASKS:
        require_code_role(principal, settings.code_roles, f"the code of task `{spec.task}`")
