"""Whether a job can run as the account that it has."""

from pathlib import Path

import pytest

from service.as_owner.accounts import Accounts
from service.as_owner.calls import OwnerCalls
from service.run_files.files import make_run_files
from tests.unit.service.as_owner.test_accounts import ADA, lookup


@pytest.mark.parametrize(
    ("uid", "known", "expected"),
    [
        (None, None, None),
        (ADA, {"ada": ADA}, None),
        (ADA, None, "TRAINYARD_RUN_AS=service"),
        (None, {"ada": ADA}, "TRAINYARD_RUN_AS=owner"),
        (0, {"root": 0}, "no job may run as uid 0"),
    ],
)
def test_a_job_runs_only_as_the_setting_states(
    uid: int | None, known: dict[str, int] | None, expected: str | None
) -> None:
    accounts: Accounts | None = None if known is None else lookup(known)
    files = make_run_files(Path("runs"), None if accounts is None else OwnerCalls(accounts))
    problem = files.problem(uid)
    assert problem is None if expected is None else expected in (problem or "")
