"""`bench.gpu --dry` runs every case on the CPU, with the worker's packages alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]
SERVICE_PACKAGES = (
    *("fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "psycopg", "pydantic_settings", "structlog"),
    *("prometheus_client", "ulid", "cryptography", "msgspec", "rich"),
)
CASES = 39


@pytest.fixture
def environment(tmp_path):
    """Return an environment in which the packages of the service cannot be imported."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in SERVICE_PACKAGES:
        (blocked / f"{name}.py").write_text(f"raise ImportError('{name} is a package of the service')\n")
    return {**os.environ, "PYTHONPATH": f"{blocked}:{ROOT}", "OMP_NUM_THREADS": "1"}


def run(environment, output, *options):
    command = [sys.executable, "-m", "bench.gpu", "--dry", "--output", str(output), *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580, check=False)


def records(output):
    return [json.loads(line) for line in output.read_text().splitlines()[1:]]


@pytest.mark.slow
def test_dry_run_passes_every_case_and_does_not_repeat_them(environment, tmp_path):
    output = tmp_path / "results" / "dry.jsonl"
    ran = run(environment, output, "--seconds", "560")
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    started, ended = (
        [record for record in records(output) if (record["verdict"] == "started") is begins] for begins in (True, False)
    )
    assert {record["verdict"] for record in ended} == {"passed", "measured"}
    assert len(started) == len(ended) == CASES
    assert "service: not run: " in ran.stdout
    assert output.with_suffix(".md").read_text().count("\n| ") == 1 + CASES
    again = run(environment, output, "--phase", "saves")
    assert again.returncode == 0
    assert len(records(output)) == 2 * CASES


def test_results_of_another_machine_are_not_continued(environment, tmp_path):
    output = tmp_path / "other.jsonl"
    output.write_text(json.dumps({"machine": {"device": "another"}}) + "\n")
    refused = run(environment, output, "--phase", "saves")
    assert refused.returncode == 1
    assert "has results with another device, python, torch; choose another --output" in refused.stderr


ENDING = """
import os
from bench.gpu import saves
from bench.gpu.cases import Case, Outcome
saves.cases = lambda dry: [Case("ends", lambda tools: os._exit(3)), Case("next", lambda tools: Outcome({}, True))]
"""


def test_after_a_case_that_ends_the_process_comes_the_next(environment, tmp_path):
    (tmp_path / "patched").mkdir()
    (tmp_path / "patched" / "sitecustomize.py").write_text(ENDING)
    path = f"{tmp_path / 'patched'}:{environment['PYTHONPATH']}"
    output = tmp_path / "ending.jsonl"
    ran = run({**environment, "PYTHONPATH": path}, output, "--phase", "saves")
    assert ran.returncode == 1
    verdicts = [(record["case"], record["verdict"]) for record in records(output)]
    assert verdicts == [("ends", "started"), ("next", "started"), ("next", "passed")]
    assert "| saves | ends | started |  | its process ended |" in ran.stdout


def test_a_case_for_which_the_time_is_too_short_is_not_started(environment, tmp_path):
    output = tmp_path / "short.jsonl"
    ran = run(environment, output, "--phase", "saves", "--seconds", "20")
    assert ran.returncode == 0
    assert "saves: 0.3B, single: not run, needs 25 s; run again to continue" in ran.stdout
    assert records(output) == []


@pytest.mark.slow
def test_with_its_packages_a_job_runs_through_the_service(environment, tmp_path):
    output = tmp_path / "service.jsonl"
    ran = run({**environment, "PYTHONPATH": str(ROOT)}, output, "--phase", "service")
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert [record["verdict"] for record in records(output)] == ["started", "passed"]
