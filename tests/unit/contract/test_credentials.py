"""Credentials in a spec are rejected, and no message contains their value."""

from typing import Any

import pytest

from trainyard.contract.spec.credentials import credential_problems
from trainyard.contract.spec.training_spec import parse_spec

BASE = {
    "task": "regression",
    "model": {"source": "builtin", "name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
    "steps": 1,
}
HF = "hf_" + "aB3" * 11 + "x"
VALUES = [
    HF,
    "sk-" + "a1" * 20,
    "ghp_" + "a1" * 18,
    "github_pat_" + "a1" * 20,
    "AKIA" + "A1" * 8,
    "xoxb-1234567890-abc",
    "glpat-" + "a1" * 10,
    "ty_0123456789ab_" + "x" * 43,
    "https://anna:hush@host.example/data",
    "redis://:hush@host:6379/0",
    "-----BEGIN RSA PRIVATE KEY-----",
]


def fields(**changes: Any) -> list[str]:
    problems = credential_problems(parse_spec({**BASE, **changes}))
    for problem in problems:
        assert "trainyard secrets set" in problem.message
        assert not any(value in str(problem) for value in VALUES)
    return [problem.param for problem in problems]


@pytest.mark.parametrize("value", VALUES)
def test_credential_is_detected_in_every_text(value: str) -> None:
    assert fields(environment={"variables": {"APP_X": f"see {value}"}}) == ["environment.variables.APP_X"]
    assert fields(metadata={"note": value}) == ["metadata.note"]
    assert fields(metadata={value: "x"}) == ["metadata"]
    assert fields(name=value[:120]) == ["name"]
    script = {"task": "script", "argv": ["-m", "train", value], "model": None, "data": None, "steps": None}
    assert fields(**script) == ["argv.2"]


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "DB_PASSWORD", "AWS_SECRET", "MY_API_KEY", "APP_KEY", "KEY", "AWS_ACCESS_KEY_ID", "APP_PASSWD"]
)
def test_variable_named_like_a_credential_is_rejected(name: str) -> None:
    assert fields(environment={"variables": {name: "hush"}}) == [f"environment.variables.{name}"]


@pytest.mark.parametrize("name", ["db_password", "api-key", "apiKey", "hf_token", "client secret", "db.password"])
def test_label_named_like_a_credential_is_rejected(name: str) -> None:
    assert fields(metadata={name: "hush"}) == [f"metadata.{name}"]


def test_message_distinguishes_a_name_from_a_value() -> None:
    def message(**changes: Any) -> str:
        (problem,) = credential_problems(parse_spec({**BASE, **changes}))
        return problem.message

    assert "is named like a credential" in message(environment={"variables": {"APP_PASSWORD": "1"}})
    assert "rename it" in message(metadata={"api_key": "1"})
    assert "has a value that looks like" in message(metadata={"api_key": VALUES[0]})


def test_ordinary_texts_are_no_credentials() -> None:
    variables = {"TOKENIZERS_PARALLELISM": "false", "APP_MONKEY": "1", "APP_TOKENS": "5", "APP_URL": "http://a:80/b@c"}
    variables |= {"APP_MAX_TOKEN_LENGTH": "12", "APP_TOKEN_BUDGET": "1"}
    labels = {
        "tokenizer": "llama",
        "tokens": "1e9",
        "token_count": "12",
        "key": "value",
        "commit": "a" * 40,
        "task-sk": "hf_llama",
    }
    assert fields(environment={"variables": variables}, metadata=labels, name="sk-learn baseline") == []
