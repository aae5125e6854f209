"""What is learned of conversations, with published chat templates, beside the marks of their variants for training."""

import json
from pathlib import Path

import pytest

from tests.support.chat_templates import SHAPES, outcomes, templates

OUTCOMES = Path(__file__).with_name("template_outcomes.json")
"""By template and shape: `agrees` with the variant's marks, or what is learned, or why it is refused."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, str]]:
    return json.loads(OUTCOMES.read_text())


@pytest.mark.parametrize("name", sorted(templates()))
def test_what_is_learned_of_each_shape(name: str, recorded: dict[str, dict[str, str]]) -> None:
    assert dict(outcomes(*templates()[name])) == recorded[name]


def test_at_least_300_conversations_agree_with_the_reference(recorded: dict[str, dict[str, str]]) -> None:
    assert set(recorded) == set(templates())
    assert all(set(shapes) == set(SHAPES) for shapes in recorded.values())
    assert sum(outcome.startswith("agrees") for shapes in recorded.values() for outcome in shapes.values()) >= 300


if __name__ == "__main__":
    made = {name: dict(outcomes(*pair)) for name, pair in sorted(templates().items())}
    OUTCOMES.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
