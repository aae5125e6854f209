"""Points with invalid keys or times are refused with their batch and are harmless if they are stored already."""

import json
import random
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.readers import check_readers
from tests.support.world import World

VALID_POINT = {"key": "a", "step": 1, "value": 1.0, "time": "2026-01-01T00:00:00Z"}

INVALID: list[dict[str, Any]] = [
    *(
        {"time": time}
        for time in (
            "0001-01-01T00:00:00+10:00",
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59-10:00",
            "9999-12-31T23:59:59Z",
            "1969-12-31T23:59:59Z",
            "2200-01-01T00:00:00.001Z",
            "2026-01-01T00:00:00",
            "2026-01-01",
            "1700000000",
            "",
            1_700_000_000,
            None,
        )
    ),
    *({"step": step} for step in (-1, 2**53 + 1, 2**62, 2**64, 10**400, 1.5, True, "x", None)),
    *({"value": value} for value in (True, "x", None, [], 10**400)),
    *({"key": key} for key in ("", "x" * 251, 1)),
]


def report(world: World, job: str, *points: Any) -> Any:
    return world.worker(job).post("metrics", {"execution": 1, "resumed_from_step": 0, "points": list(points)})


@pytest.mark.databases("sqlite")
def test_invalid_point_is_refused_for_known_and_new_metrics(world: World, subtests: pytest.Subtests) -> None:
    job = world.submit()
    worker = world.start(job)
    assert report(world, job, VALID_POINT).status_code == 200
    for change, name in [(change, name) for change in INVALID for name in ("new", "a")]:
        with subtests.test(json.dumps(change)[:40], name=name):
            point = {**VALID_POINT, "key": name, "step": 2, **change}
            body = json.dumps({"execution": 1, "resumed_from_step": 0, "points": [{**VALID_POINT, "step": 3}, point]})
            answer = worker.client.post(f"/v1/attempts/{worker.attempt_id}/metrics", content=body)
            assert answer.status_code == 422, answer.text
            with world.database.read() as session:
                assert session.scalar(sa.text("SELECT COUNT(*) FROM points")) == 1, "a refused batch leaves nothing"
    check_readers(world, job)


def test_extreme_valid_points_are_readable_everywhere(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    times = ("1970-01-01T00:00:00Z", "2200-01-01T00:00:00Z", "2100-01-01T00:00:00+14:00")
    for step, time in enumerate(times):
        assert (
            report(world, job, {**VALID_POINT, "step": 2**53 - step, "time": time, "value": 1.7e308}).status_code == 200
        )
    progress = {"step": 0, "total_steps": 2**53, "seconds_per_step": 1.7e308}
    assert worker.metrics([], progress=progress).status_code == 200
    check_readers(world, job)
    assert world.job(job)["progress"]["total_steps"] == 2**53
    worker.end("completed")
    world.tick()
    assert world.client.get(f"/v1/jobs/{job}/stream").status_code == 200


@pytest.mark.databases("sqlite")
def test_extreme_tokens_leave_the_token_axis_readable(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    points = [("train/tokens", 1, 1.7e308), ("train/tokens", 2, 1e-300), ("train/tokens", 3, "NaN"), ("a", 2**53, 1.0)]
    assert worker.metrics(points).status_code == 200
    for axis in ("tokens", "time"):
        answer = world.client.get(f"/v1/jobs/{job}/metrics?x={axis}")
        assert answer.status_code in (200, 409), answer.text


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00"])
def test_times_out_of_range_in_queries_are_refused(world: World, time: str) -> None:
    for path in ("/v1/jobs", "/v1/audit"):
        answer = world.client.get(path, params={"created_after": time})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "created_after")


def test_stored_bad_times_and_steps_break_no_reader(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    assert worker.metrics([("a", step, 1.0) for step in range(1, 5)]).status_code == 200
    worker.checkpoint(4)
    with world.database.write() as session:
        for step, column, value in ((1, "time", -(2**62)), (2, "time", 2**62), (3, "step", 2**62), (4, "time", -1)):
            session.execute(sa.text(f"UPDATE points SET {column} = :value WHERE step = {step}"), {"value": value})
        session.execute(sa.text("UPDATE checkpoints SET created_at = :value"), {"value": -(2**61)})
    check_readers(world, job)
    worker.end("completed")
    world.tick()
    text = world.client.get(f"/v1/jobs/{job}/stream").text
    assert '"status":"succeeded"' in text


@pytest.mark.cpu_seconds(6)
@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("seed", range(3))
def test_known_and_new_metrics_get_the_same_answer(world: World, seed: int) -> None:
    """Random bodies: the decoder of known metrics and the model of new ones agree on the answer and on the rows."""
    draw = random.Random(seed)
    known, new = world.submit(), world.submit()
    world.start(known)
    world.start(new)
    parts: dict[str, list[Any]] = {
        "step": [0, 1, 2**53, 2**53 + 1, -1, "3", 1.0, None],
        "value": [0, -0.0, 1, 1e308, 5e-324, "NaN", "1e3", "inf", None, True],
        "time": [
            "2026-01-01T00:00:00.123456789Z",
            "2026-01-01 00:00:00+00:00",
            "2026-01-01T00:00:00-23:59",
            "2199-12-31T23:59:59.9999999Z",
            "2026-01-01T00:00:00z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
        ],
    }
    report(world, known, *({**VALID_POINT, "key": f"k{n}", "step": 9**9} for n in range(60)))
    for n in range(60):
        point = {field: draw.choice(values) for field, values in parts.items()}
        answers = []
        for job, key in ((known, f"k{n}"), (new, f"n{seed}_{n}")):
            answer = report(world, job, {"key": key, **point})
            answers.append((answer.status_code, answer.text if answer.status_code == 200 else ""))
        assert answers[0] == answers[1], point
    rows = []
    with world.database.read() as session:
        for job, prefix in ((known, "k%"), (new, "n%")):
            query = (
                "SELECT step, value, special, time FROM points p JOIN metric_keys k ON k.pk = p.key_pk"
                " JOIN jobs j ON j.pk = p.job_pk WHERE j.id = :job AND k.name LIKE :prefix AND step != 387420489"
                " ORDER BY p.sequence"
            )
            rows.append(session.execute(sa.text(query), {"job": job, "prefix": prefix}).all())
    assert rows[0] == rows[1]
