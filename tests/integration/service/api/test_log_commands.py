"""`trainyard logs` with --grep, --level, --since and --around, and the client's search, against the service."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from tests.support.world import World
from trainyard.cli.app import app
from trainyard.client import Client

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def new_client(world: World) -> Callable[[], Client]:
    def answer(request: httpx.Request) -> httpx.Response:
        got = world.client.request(
            request.method, str(request.url), headers={**request.headers, "accept-encoding": "identity"}
        )
        return httpx.Response(got.status_code, headers=dict(got.headers), content=got.content)

    return lambda: Client("http://localhost", world.token, transport=httpx.MockTransport(answer))


@pytest.fixture
def logs(world: World, new_client: Callable[[], Client]) -> Any:
    """A job of two ranks with a log over three minutes, and `trainyard logs last`."""
    worker = world.start(world.submit())
    size = 0
    for step in range(1, 4):
        world.clock.advance(60)
        worker.metrics([("train/loss", step, 1.0)])
        text = f"step {step}\nloss {step}.5\n" + ("ERROR: nan\n" if step == 2 else "")
        worker.log("0", size, text.encode())
        size += len(text)
    worker.log("1", 0, b"rank one, STEP 2\n")

    def invoke(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["logs", "last", *arguments], obj=new_client)
        assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
        return done.stdout if code == 0 else done.stderr

    return invoke


def test_grep_finds_text_and_expressions(logs: Any) -> None:
    assert logs("--grep", "STEP 2") == "step 2\n"
    assert logs("--grep", r"/^(step|loss) [13]/") == "step 1\nloss 1.5\nstep 3\nloss 3.5\n"
    assert logs("--grep", "step 2", "--rank", "all") == "[0] step 2\n[1] rank one, STEP 2\n"
    assert json.loads(logs("--level", "error", "--json")) == {
        "rank": "0",
        "offset": 32,
        "level": "error",
        "text": "ERROR: nan",
    }
    assert logs("--grep", "loss", "--since", "2026-01-01T00:02:30Z") == "loss 3.5\n"
    assert "no line matches" in logs("--grep", "nothing", code=1)
    assert "RE2" in logs("--grep", "/(/", code=2)


def test_since_and_around_print_a_part(logs: Any) -> None:
    assert logs("--since", "2026-01-01T00:02:30Z") == "step 3\nloss 3.5\n"
    assert logs("--around", "error", "-C", "1") == "loss 2.5\nERROR: nan\n"
    assert logs("--around", "step 2", "-C", "2") == "step 1\nloss 1.5\nstep 2\nloss 2.5\n"
    assert logs("--around", "2026-01-01 00:02:30", "-C", "1") == "ERROR: nan\nstep 3\n"
    assert "no point at step 9" in logs("--around", "9", code=6)
    assert "a step, a time or `error`" in logs("--around", "noon", code=2)
    assert "no line that reports an error" in logs("--around", "error", "--rank", "1", code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--grep", "x", "-f"), "whole log"),
        (("--around", "3", "--tail", "1"), "one part"),
        (("--rank", "all"), "needs --grep"),
    ],
)
def test_combinations_without_a_meaning_are_refused(logs: Any, arguments: tuple[str, ...], message: str) -> None:
    assert message in logs(*arguments, code=2)


def test_client_searches_all_pages(new_client: Callable[[], Client], logs: Any) -> None:
    client = new_client()
    job = client.job("last")
    assert [line.text for line in job.search_logs("loss")] == ["loss 1.5", "loss 2.5", "loss 3.5"]
    newest = client.search_logs(job.id, r"loss \d", regex=True, newest_first=True)
    assert next(iter(newest)).text == "loss 3.5"
    position = client.log_position(job.id, step=2)
    assert (position.attempt, position.offset) == (1, 16)
    assert client.log_position(job.id, time=position.time).offset == 16
    assert client.logs(job.id, tail=1, before=16).text == "loss 1.5\n"
