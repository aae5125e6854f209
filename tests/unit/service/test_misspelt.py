"""A setting whose name has a slip is told."""

import pytest

from service.misspelt import misspelt


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TRAINYARD_MAX_GPUS_PER_USR", "TRAINYARD_MAX_GPUS_PER_USER"),
        ("TRAINYARD_RUN_DIR", "TRAINYARD_RUNS_DIR"),
        ("trainyard_code_role", "TRAINYARD_CODE_ROLES"),
    ],
)
def test_a_slip_is_told(name: str, meant: str) -> None:
    assert misspelt([name, "PATH"]) == [f"{name} is no setting and is ignored; did you mean {meant}?"]


def test_what_is_right_or_anothers_is_left_alone() -> None:
    ours = ["TRAINYARD_MAX_GPUS_PER_USER", "trainyard_port", "TRAINYARD_URL", "TRAINYARD_TOKEN", "TRAINYARD_PORTS"]
    others = ["TRAINYARD_EXECUTION", "TRAINYARD_ATTEMPT_FOLDER", "TRAINYARD_TEST_FAULTS", "TRAINYARD_NOTES", "MAX_GPUS"]
    compose = ["TRAINYARD_UID", "TRAINYARD_GID", "TRAINYARD_BIND", "TRAINYARD_TLS_PORT", "TRAINYARD_TLS_BIND"]
    assert misspelt([*ours, *others, *compose]) == []
