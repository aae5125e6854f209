"""Who may run code of their own, and whether it is there. Pure but for one look at the disk."""

from collections.abc import Collection
from pathlib import Path

from service.auth.principals import Principal
from service.code.store import find
from service.core.errors import InvalidSpecError, PermissionDeniedError
from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.spec.user_code import CODE_TASKS, runs_uploaded_file


def require_code_role(principal: Principal, roles: Collection[str], what: str) -> None:
    """Raises PermissionDeniedError: running one's own code is an administrator's power unless it was granted."""
    if principal.role not in roles and not principal.may_run_code:
        raise PermissionDeniedError(
            f"{what} runs as the service's account, which takes a token with the role "
            f"{' or '.join(sorted(roles))}; yours has {principal.role} (an administrator sets TRAINYARD_CODE_ROLES, or "
            "makes a token that may: `trainyard tokens create NAME --may-run-code`)",
            code="code_role_required",
        )


def admit(principal: Principal, spec: TrainingSpec, *, roles: Collection[str], runs: Path) -> None:
    """Whether this person may run this spec's code, and whether the service has it.

    Raises:
        PermissionDeniedError: the role is not enough.
        InvalidSpecError: the code was never uploaded, or the program needs some and the spec names none.
    """
    if spec.task not in CODE_TASKS:
        return
    require_code_role(principal, roles, f"the code of task `{spec.task}`")
    if spec.code is None and spec.argv is not None and runs_uploaded_file(spec.argv):
        message = f"is needed: `{spec.argv[0]}` is a file of an uploaded folder (trainyard submit --code FOLDER)"
        raise InvalidSpecError([Problem(param="code", message=message)])
    if spec.code is not None and find(runs, spec.code) is None:
        message = "this service has no code of that digest; upload it first (trainyard submit --code FOLDER)"
        raise InvalidSpecError([Problem(param="code", message=message)])
