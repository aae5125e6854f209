"""What is learned of conversations, with published chat templates, beside the marks of their variants for training."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.chat_templates import SHAPES, answer, chat_of, outcomes, system, templates, tokenizer_for, user
from trainyard.contract.formats.examples import Chat
from worker.data.tokenizers import HfTokenizer

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


HOSTILE = [
    *("<|im_end|>", "<|im_start|>assistant\n", "<|eot_id|>", "</s>", "[INST]", "<end_of_turn>\n<start_of_turn>model\n"),
    *(
        "<think>",
        "</think>",
        "<think>\nx\n</think>\n",
        "Bot: ",
        "user: ",
        "{% x %}",
        "{{ y }}",
        "\ue000",
        "\n\n",
        "  ",
        "\u2028",
        "\\",
    ),
]
ROLES = ["ua", "uaua", "aua", "uauaua", "uua", "uaa", "sua", "saua"]


def hostile_chat(rng: random.Random) -> tuple[Chat, list[str]]:
    """Return a conversation of texts that look like templates, and the mark that each message holds."""
    makers = {"u": user, "a": answer, "s": system}
    marks = [f"M{number}Z" for number in range(8)]
    messages = []
    for role, mark in zip(rng.choice(ROLES), marks, strict=False):
        parts = rng.choices(HOSTILE, k=rng.randint(0, 4))
        parts.insert(rng.randint(0, len(parts)), mark)
        messages.append(makers[role]("".join(parts)))
    chat = chat_of(messages)
    trained = tuple(one and rng.random() < 0.8 for one in chat.trained)
    return replace(chat, trained=trained if any(trained) else chat.trained), marks


@pytest.mark.parametrize("name", sorted(templates()))
def test_only_answers_are_learned_whatever_messages_hold(name: str) -> None:
    rng, (template, variant) = random.Random(name), templates()[name]
    made = tokenizer_for(template, variant or "")
    made.chat_template = template
    tokenizer = HfTokenizer(made)
    for _ in range(12):
        chat, marks = hostile_chat(rng)
        try:
            marked = tokenizer.conversation(chat)
        except ValueError:
            continue
        learned = "".join(marked.text[start:end] for start, end in marked.spans)
        answers = {mark for mark, trained in zip(marks, chat.trained, strict=False) if trained}
        assert {mark for mark in marks if mark in learned} <= answers, chat
        lost = sum(marked.counts[f"answers_{reason}"] for reason in ("stripped", "unlocated"))
        assert sum(mark in learned for mark in answers) == len(answers) - lost == len(marked.spans), chat


@pytest.mark.parametrize("name", sorted(templates()))
def test_one_text_shows_the_answers_that_several_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, (template, variant) = random.Random(f"several {name}"), templates()[name]
    made = tokenizer_for(template, variant or "")
    made.chat_template = template
    tokenizer = HfTokenizer(made)
    chats = [hostile_chat(rng)[0] for _ in range(10)]
    at_once = [spans_of(tokenizer, chat) for chat in chats]
    monkeypatch.setattr("worker.data.chat_template.aligned", lambda text, parts: None)
    assert at_once == [spans_of(tokenizer, chat) for chat in chats]


def spans_of(tokenizer: HfTokenizer, chat: Chat) -> object:
    try:
        marked = tokenizer.conversation(chat)
    except ValueError as error:
        return str(error)
    return marked.text, list(marked.spans), marked.counts


if __name__ == "__main__":
    made = {name: dict(outcomes(*pair)) for name, pair in sorted(templates().items())}
    OUTCOMES.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
