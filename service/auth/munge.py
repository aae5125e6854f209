"""Decodes munge credentials with the program `unmunge` and the munged of this machine."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from service.core.errors import AuthenticationError, UnavailableError

log = structlog.get_logger("munge")

_TIMEOUT_SECONDS = 10.0
_FAILURES = {
    8: ("invalid_credential", "the munge credential is malformed"),
    9: ("invalid_credential", "the munge credential has another version"),
    10: ("invalid_credential", "the munge credential has an unknown cipher"),
    11: ("invalid_credential", "the munge credential has an unknown type of message authentication"),
    12: ("invalid_credential", "the munge credential has an unknown compression"),
    13: ("invalid_credential", "the munge credential has an unknown realm"),
    14: ("invalid_credential", "the munge credential was not made with the key of this cluster"),
    15: ("expired_credential", "the munge credential has expired; the clocks of both machines must agree"),
    16: ("expired_credential", "the munge credential is from the future; the clocks of both machines must agree"),
    17: ("replayed_credential", "the munge credential was used before"),
    18: ("invalid_credential", "the munge credential is for another account"),
}
"""Code and message by exit status, which is munge's error number (munge.h). All others are failures of munge itself."""


class CredentialError(AuthenticationError):
    """A credential proves nothing, or nothing about this sign-in."""

    def __init__(self, message: str, *, code: str):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class DecodedCredential:
    """The uid that made a credential, and the message that it carries."""

    uid: int
    message: bytes


class CredentialDecoder(Protocol):
    """Decodes credentials."""

    def decode(self, credential: str) -> DecodedCredential:
        """Decode a credential; each can be decoded once on a machine.

        Raises:
            CredentialError: it is invalid, has expired or was decoded before.
            UnavailableError: munge does not work on this machine.
        """


@dataclass(frozen=True)
class UnmungeProgram:
    """The program `unmunge`."""

    socket: Path | None = None
    """Socket of munged; None: the socket that munge was built with."""
    program: str = "unmunge"

    def decode(self, credential: str) -> DecodedCredential:
        path = shutil.which(self.program)
        if path is None:
            raise _unavailable("the program `unmunge` is not installed on the service's machine")
        options = ["--numeric", "--keys=UID", *([f"--socket={self.socket}"] if self.socket else [])]
        try:
            done = subprocess.run(
                [path, *options],
                input=credential.encode("ascii"),
                capture_output=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _unavailable(f"unmunge failed: {error}") from None
        if done.returncode in _FAILURES:
            code, message = _FAILURES[done.returncode]
            raise CredentialError(message, code=code)
        if done.returncode != 0:
            raise _unavailable(f"unmunge ended with {done.returncode}: {done.stderr.decode(errors='replace')[:500]}")
        return _parse(done.stdout)


def _parse(output: bytes) -> DecodedCredential:
    """Parse lines `KEY: value`, an empty line, and the message. The message's author can change only the text after the
    lines."""
    head, separator, message = output.partition(b"\n\n")
    key, _, value = head.partition(b":")
    if not separator or key.strip() != b"UID" or not value.strip().isdigit():
        raise _unavailable("the output of unmunge has another format than expected")
    return DecodedCredential(int(value), message)


def _unavailable(reason: str) -> UnavailableError:
    """Return the error for the client, and log the reason for the administrator."""
    log.error("sign-in by munge fails", reason=reason)
    return UnavailableError("munge does not work on the service's machine; its log has the reason", code="munge")
