"""Conditions of jobs."""

import ast
import string
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from service.jobs.conditions import TEXTS, Condition
from trainyard.contract.wire.jobs import ConditionCode

ROOT = Path(__file__).parents[4]
DISPLAYS = {
    "service/plugins/webhooks/outbox.py",
    "service/jobs/conditions.py",
    "service/jobs/repository.py",
    "service/jobs/schemas.py",
    "service/jobs/operator_resolution.py",
    "service/jobs/table/conditions.py",
    "service/jobs/table/listing.py",
    "service/plugins/mlflow/schemas.py",
    "service/plugins/openai/schemas.py",
    "service/plugins/sweeps/resources.py",
}
"""Modules that show the message of a job, search it for a user, or compare it to avoid a write."""


def _readers() -> Iterator[str]:
    for path in (ROOT / "service").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "status_message" and isinstance(node.ctx, ast.Load):
                yield str(path.relative_to(ROOT))


def test_every_condition_has_a_text() -> None:
    assert set(TEXTS) == set(get_args(ConditionCode))


def test_a_message_is_rendered_from_the_data_alone() -> None:
    for code, text in TEXTS.items():
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name]
        message = Condition(code, {name: f"{{{name}}}" for name in names}).message
        assert message == text.strip(), "braces in the data are text"


def test_nothing_decides_by_the_message_of_a_job() -> None:
    assert set(_readers()) <= DISPLAYS
