"""Fixtures that every test may use."""

import os
from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresMissingError, PostgresServer, running_server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL. Without one and without a way to install it: skipped with a hint, in CI an error."""
    server = running_server()
    try:
        running = server.__enter__()
    except PostgresMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{error}; in CI nothing is skipped")
        pytest.skip(str(error))
    try:
        yield running
    finally:
        server.__exit__(None, None, None)
