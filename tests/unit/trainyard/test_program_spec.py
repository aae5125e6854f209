"""The texts of time limits and warning signals."""

import pytest

from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_spec import parse_minutes, parse_signal


@pytest.mark.parametrize(
    ("text", "minutes"), [("90m", 90), ("4h", 240), ("2d", 2880), ("1-12:00", 2160), ("12:30:59", 750), ("0:05", 5)]
)
def test_time_limit_is_parsed(text: str, minutes: int) -> None:
    assert parse_minutes(text) == minutes


@pytest.mark.parametrize("text", ["", "4", "h", "0m", "-1h", "4 hours", "1-12", "99999999m"])
def test_other_time_limits_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a time limit"):
        parse_minutes(text)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("SIGUSR1", {"name": "SIGUSR1"}),
        ("usr1@2m", {"name": "SIGUSR1", "lead_minutes": 2.0}),
        ("SIGTERM@90s", {"name": "SIGTERM", "lead_minutes": 1.5}),
        ("INT@120", {"name": "SIGINT", "lead_minutes": 2.0}),
    ],
)
def test_warning_signal_is_parsed(text: str, fields: dict) -> None:
    assert parse_signal(text) == fields


@pytest.mark.parametrize("text", ["", "SIGKILL", "SIGUSR1@", "SIGUSR1@2d", "@2m", "USR1 @2m"])
def test_other_warning_signals_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not SIGUSR1"):
        parse_signal(text)
