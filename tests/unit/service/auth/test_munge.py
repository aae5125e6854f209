"""How the output and the exit status of `unmunge` are read."""

from pathlib import Path

import pytest

from service.auth import munge as munge_module
from service.auth.munge import CredentialError, UnmungeProgram
from service.core.errors import ServiceError, UnavailableError

CREDENTIAL = "MUNGE:AwQFAACj:"


def program(folder: Path, script: str) -> UnmungeProgram:
    path = folder / "unmunge"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return UnmungeProgram(folder / "socket", str(path))


def refusal(decoder: UnmungeProgram) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        decoder.decode(CREDENTIAL)
    return caught.value


def test_uid_and_message_are_read(tmp_path: Path) -> None:
    decoded = program(tmp_path, r"printf 'UID:             4711\n\nfirst\n\nUID: 0\n\nlast'").decode(CREDENTIAL)
    assert (decoded.uid, decoded.message) == (4711, b"first\n\nUID: 0\n\nlast")


def test_credential_is_on_stdin_and_the_socket_an_option(tmp_path: Path) -> None:
    script = f'echo "$@" >{tmp_path}/options; cat >{tmp_path}/input; printf "UID: 1\\n\\n"'
    assert program(tmp_path, script).decode(CREDENTIAL).message == b""
    assert (tmp_path / "input").read_text() == CREDENTIAL
    assert (tmp_path / "options").read_text().split() == ["--numeric", "--keys=UID", f"--socket={tmp_path}/socket"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (8, "invalid_credential"),
        (14, "invalid_credential"),
        (15, "expired_credential"),
        (16, "expired_credential"),
        (17, "replayed_credential"),
        (18, "invalid_credential"),
    ],
)
def test_exit_status_of_a_bad_credential_is_a_refusal(tmp_path: Path, status: int, code: str) -> None:
    error = refusal(program(tmp_path, rf"printf 'UID: 4711\n\nx'; exit {status}"))
    assert isinstance(error, CredentialError)
    assert (error.status, error.code) == (401, code)


@pytest.mark.parametrize(
    "script",
    [
        "exit 1",
        "exit 6",
        "kill -9 $$",
        "printf 'UID: 4711'",
        r"printf 'UID: ada\n\n'",
        r"printf 'UID: \n\n'",
        r"printf 'GID: 4711\n\n'",
        r"printf 'UID: 4711\nGID: 1\n\n'",
        "true",
    ],
)
def test_other_results_mean_that_munge_does_not_work(tmp_path: Path, script: str) -> None:
    error = refusal(program(tmp_path, script))
    assert isinstance(error, UnavailableError)
    assert (error.status, error.code) == (503, "munge")


def test_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(munge_module, "_TIMEOUT_SECONDS", 0.2)
    assert refusal(program(tmp_path, "exec sleep 60")).status == 503
