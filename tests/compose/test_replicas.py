"""Three replicas of the API behave as one service."""

import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import httpx
import pytest

from tests.compose.runs import CODE, STEPS, LongRun, assert_complete, script_spec
from tests.support.compose_stack import Stack

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

REPLICAS = range(3)


@pytest.mark.smoke
def test_idempotency_key_on_all_replicas_creates_one_job(stack: Stack) -> None:
    def submit(number: int) -> str:
        with stack.client(number % 3) as client:
            return client.submit(script_spec("once"), code=CODE, idempotency_key="replicas-once").id

    with ThreadPoolExecutor(9) as pool:
        assert len(set(pool.map(submit, range(9)))) == 1


def assert_stream_is_not_buffered(stack: Stack, run: LongRun) -> None:
    """Assert that metrics arrive through the TLS proxy while the run lasts: the proxy must not buffer the stream."""
    tls_context = ssl.create_default_context(cafile=str(stack.certificate))
    headers = {"Authorization": f"Bearer {stack.token}"}
    url = f"https://127.0.0.1:{stack.secure_port}/v1/jobs/{run.id}/stream"
    with httpx.stream("GET", url, headers=headers, verify=tls_context, timeout=60) as answer:
        assert answer.status_code == 200
        assert "strict-transport-security" in answer.headers, "the service does not trust the proxy"
        assert "event: metrics" in answer.iter_lines()


def test_stream_has_reports_sent_to_other_replicas(stack: Stack) -> None:
    run = LongRun(stack, "streamed")
    token = stack.execute("reconciler", "sh", "-c", f"cat /shared/runs/{run.id}/attempts/1-*/token").strip()
    with stack.client() as client:
        (attempt,) = client.attempts(run.id)
    event = {
        "sequence": 10**6,
        "type": "sent_to_all_replicas",
        "message": "to every replica",
        "time": datetime.now(UTC),
    }

    def report(number: int) -> int:
        with stack.client(number) as client:
            answer = httpx.post(
                f"{client.url}/v1/attempts/{attempt.id}/events",
                headers={"Authorization": f"Bearer {token}"},
                json={"execution": attempt.execution, "events": [{**event, "time": str(event["time"].isoformat())}]},
            )
        return answer.status_code

    def follow(number: int) -> list[tuple[str, int]]:
        with stack.client(number) as client:
            results = [event for event in client.stream(run.id, logs=False) if event.type == "metrics"]
        return [(point.key, point.step) for event in results for point in event.data.points]

    assert_stream_is_not_buffered(stack, run)
    with ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(follow, number) for number in REPLICAS]
        assert list(pool.map(report, REPLICAS)) == [200, 200, 200]
        run.finish()
        results = [stream.result(60) for stream in streams]
    with stack.client() as client:
        assert_complete(client, run.id)
        assert [event.type for event in client.events(run.id)].count("worker.sent_to_all_replicas") == 1
    for points in results:
        losses = [step for key, step in points if key == "train/loss"]
        assert losses == sorted(set(losses)), "a stream sends each point once"
        assert losses[-1] == STEPS
