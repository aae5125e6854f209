"""How messages for users begin."""

import pytest

from service.core.sentences import begin_with_capital


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("submitted by anna", "Submitted by anna"),
        ("the program starts", "The program starts"),
        ("zero1 keeps whole gradients", "zero1 keeps whole gradients"),
        ("optimizer.lr is 0.1", "optimizer.lr is 0.1"),
        ("eval/loss: 0.5", "eval/loss: 0.5"),
        ("`steps` is 3", "`steps` is 3"),
        ("Waiting for node1", "Waiting for node1"),
        ("", ""),
    ],
)
def test_message_begins_with_a_capital_unless_it_begins_with_a_name(message, expected):
    assert begin_with_capital(message) == expected
