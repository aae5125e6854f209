"""Temporary Unix accounts and an interpreter that they can run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.as_owner.accounts import Accounts
from service.as_owner.calls import HELPER, OwnerCalls
from service.as_owner.runs_folder import MODE
from tests.support.owners import UnixUser, open_folder, readable_python, unix_users


@pytest.fixture(scope="session")
def people() -> Iterator[list[UnixUser]]:
    """Yield three accounts."""
    if os.geteuid() != 0:
        pytest.skip("only root can make Unix accounts")
    with unix_users(3) as made:
        yield made


@pytest.fixture(scope="session")
def python() -> Iterator[Path]:
    with readable_python() as made:
        yield made


@pytest.fixture
def calls(python: Path) -> OwnerCalls:
    return OwnerCalls(Accounts(1000), python.with_name(HELPER))


@pytest.fixture
def runs(people: list[UnixUser]) -> Iterator[Path]:
    """Yield a folder for runs of all accounts."""
    with open_folder() as folder:
        made = folder / "runs"
        made.mkdir()
        made.chmod(MODE)
        yield made
