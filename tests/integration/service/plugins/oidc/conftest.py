"""A service with a provider that states whatever a test wants."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.oidc_portal import Portal
from tests.support.oidc_signer import Signer, running_signer
from tests.support.world import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def signer(clock: FakeClock) -> Iterator[Signer]:
    with running_signer(clock()) as made:
        yield made


@pytest.fixture
def portal(database_url: str, tmp_path: Path, signer: Signer, clock: FakeClock) -> Iterator[Portal]:
    made = Portal(database_url, tmp_path / "state", signer, clock)
    yield made
    made.world.database.dispose()
