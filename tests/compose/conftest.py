"""The whole deployment, started once per session; the summary shows how long each step took."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.compose_stack import IMAGES, Stack
from tests.support.docker_engine import DockerMissingError, Engine, running_engine

REPORT_LINES: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in REPORT_LINES:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Yield a Docker engine. If there is none and it cannot be installed, skip with a hint; in CI fail."""
    running = running_engine()
    try:
        made = running.__enter__()
    except DockerMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{error}; in CI nothing is skipped")
        pytest.skip(str(error))
    try:
        yield made
    finally:
        running.__exit__(None, None, None)


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Stack]:
    """Yield the running deployment with three replicas of the API.

    Only tests of adapters need peft, so that those of `make test-compose-smoke` begin earlier.
    """
    is_short = all(item.get_closest_marker("smoke") for item in request.session.items)
    with tempfile.TemporaryDirectory(prefix="trainyard-compose-") as folder:
        made = Stack(engine, Path(folder), extras="worker" if is_short else "worker,hf")
        try:
            made.prepare()
            made.up(replicas=3)
            yield made
        finally:
            REPORT_LINES.extend(f"{step}: {seconds:.0f} s" for step, seconds in made.seconds.items())
            with suppress(RuntimeError):
                REPORT_LINES.append(
                    "images: " + ", ".join(f"{name} {made.image_megabytes(name)} MB" for name in IMAGES)
                )
            with suppress(RuntimeError):
                made.down()
