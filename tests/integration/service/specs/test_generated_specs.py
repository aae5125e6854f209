"""Presets with random changes, as YAML and as JSON: each is accepted or refused with a reason, and quickly."""

import copy
import json
import random
from typing import Any

import pytest

from tests.support.cpu_limit import at_most
from tests.support.world import World
from trainyard.contract.spec.templates import load_template, template_names
from trainyard.contract.spec.yaml_loader import load_yaml

pytestmark = pytest.mark.databases("sqlite")

DOCUMENTS = 60
MAX_SECONDS = 2.0
"""Processor time of a request. The most expensive accepted spec takes 0.3 s here, and more on a slow machine."""

TOKENS = [
    "[",
    "]",
    "{",
    "}",
    ": ",
    "- ",
    "\n",
    "  ",
    "\t",
    ",",
    "#",
    "'",
    '"',
    "|",
    ">",
    "? ",
    "~",
    "*a",
    "&a ",
    "<<: ",
]
TOKENS += ["!!python/name:os.system ", "!!binary ", "!!set ", "! ", "---\n", "...\n", "%YAML 1.3\n", "%TAG ! !\n"]
TOKENS += ["0x1F", "1_000", "1e400", ".inf", ".nan", "-.inf", "0o17", "017", "2026-01-01", "yes", "1:30", "é", "\u2028"]
TOKENS += [
    "\ufeff",
    "\x00",
    "\x7f",
    "\x85",
    "\U0001f600",
    "[" * 50,
    "{a: " * 50,
    "x" * 5000,
    "- [" * 300,
    "a: 1\n" * 50,
]
VALUES: list[Any] = [None, True, 0, -1, 1, 2**31, 2**53, 2**64, 10**400, 0.5, -0.0, 1e308, 5e-324, "", "x", "auto", "*"]
VALUES += ["1e400", "nan", "\0", "\u202e", "../../etc", "/etc/passwd", "x" * 5000, [], [[]], [None], [1] * 300, {}]
VALUES += [{"source": "builtin"}, {"": 1}, {"a": {"b": {}}}, ["*"] * 70, {str(n): n for n in range(300)}]


def change_text(draw: random.Random, text: str) -> str:
    """Insert tokens, and delete, repeat and move parts of the text."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.choice((1, 3, 20, 200)))
        kind = draw.random()
        if kind < 0.5:
            text = text[:at] + draw.choice(TOKENS) + text[at:]
        elif kind < 0.7:
            text = text[:at] + text[end:]
        elif kind < 0.85:
            text = text[:end] + text[at:end] * draw.choice((1, 2, 30)) + text[end:]
        else:
            other = draw.randrange(len(text) + 1)
            text = text[:other] + text[at:end] + text[other:]
    return text or " "


def change_values(draw: random.Random, document: dict[str, Any]) -> dict[str, Any]:
    """Replace values at random paths, and add fields."""
    document = copy.deepcopy(document)
    for _ in range(draw.randint(0, 2)):
        section: Any = document
        while (
            inner := [value for value in section.values() if isinstance(value, dict) and value]
        ) and draw.random() < 0.6:
            section = draw.choice(inner)
        name = draw.choice([*section, "extra", "lora", "metadata", "profile", "restart", "environment", "restart"])
        number = isinstance(section.get(name), int | float) and draw.random() < 0.7
        section[name] = draw.choice((1, 2, 8, 64, 0.001)) if number else draw.choice(VALUES)
    return document


def generate(draw: random.Random) -> tuple[bytes, str]:
    """Return a body and its content type."""
    preset = load_template(draw.choice(template_names())).spec
    if draw.random() < 0.5:
        return json.dumps(change_values(draw, preset)).encode(), "application/json"
    text = json.dumps(preset, indent=1) if draw.random() < 0.3 else as_yaml(preset)
    kind = "application/json" if draw.random() < 0.2 else "application/yaml"
    return change_text(draw, text).encode(), kind


def as_yaml(value: Any, indent: int = 0) -> str:
    """Return the document as block YAML, which text changes break less often than JSON."""
    lines = ""
    for name, inner in value.items():
        nested = isinstance(inner, dict) and inner
        shown = f"\n{as_yaml(inner, indent + 2)}" if nested else f" {json.dumps(inner)}\n"
        lines += f"{' ' * indent}{name}:{shown}"
    return lines


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 80))])
def test_generated_spec_is_accepted_or_refused_quickly(world: World, seed: int) -> None:
    draw = random.Random(seed)
    statuses: list[int] = []
    for _ in range(DOCUMENTS):
        body, kind = generate(draw)
        with at_most(MAX_SECONDS):
            answer = world.client.post("/v1/plans", content=body, headers={"Content-Type": kind})
        assert answer.status_code in (200, 400, 422), (answer.status_code, answer.text[:300], body)
        assert answer.status_code == 200 or answer.json()["error"]["message"], body
        statuses.append(answer.status_code)
        world.clock.advance(1)
    assert {200, 400, 422} == set(statuses), "the documents are of all kinds"


def test_block_yaml_of_a_preset_is_the_preset() -> None:
    for name in template_names():
        preset = load_template(name).spec
        assert load_yaml(as_yaml(preset)) == preset
